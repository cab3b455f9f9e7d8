"""``accelerate launch -m trainers.train``: one of the processes that train an agent."""

from __future__ import annotations

import sys

from trainers.run.training import main

if __name__ == "__main__":
    sys.exit(main())
