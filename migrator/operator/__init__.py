# SPDX-License-Identifier: Apache-2.0

"""What an operator types and sees: the commands and their pictures."""
