# SPDX-License-Identifier: Apache-2.0

"""Notifications about migrations, by nova's names: from the logs, beside the migrations."""
