"""``accelerate launch -m trainers.train``: one of the processes that train an agent."""

from __future__ import annotations

import sys
from functools import partial

from trainers.planning.settling import settle
from trainers.run import training

main = partial(training.main, settle=settle)

if __name__ == "__main__":
    sys.exit(main())
