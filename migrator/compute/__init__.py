# SPDX-License-Identifier: Apache-2.0

"""One host's half of the story: it does one step when asked, and answers. Others may import only ``rpcapi``."""
