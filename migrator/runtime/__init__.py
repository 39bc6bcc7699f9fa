# SPDX-License-Identifier: Apache-2.0

"""The parts that every process needs: configuration, logs, signals, an HTTP server."""
