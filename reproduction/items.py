"""Items: a paper's tables and figures, described by `papers/<paper>/<item>.toml`, and their runs.

Users keep their own items in the same form in another folder (`reproduce.py --items=DIR`). `title`
says what the paper shows in the table or figure. `[setups.NAME]` is a part of it with its own rows;
fields outside these tables are defaults for all set-ups. The fields of a set-up are those of
`Setup`, with their types and defaults; docs/items.md explains them with an example.

The parts are in `setups` (what an item says), `item_files` (reading it) and `planned_runs`.
"""

from reproduction.item_files import (
    OWN_SELECTION,
    Item,
    all_items,
    load_item,
    own_items,
    read_item,
)
from reproduction.planned_runs import (
    PlannedRun,
    absolute,
    has_other_rounds,
    has_settings,
    in_its_folder,
    other_settings,
    planned_runs,
    settings_of_file,
)
from reproduction.setups import (
    FIELDS,
    PAPERS,
    REPO,
    ReproduceError,
    Row,
    Setup,
    UsageError,
    format_value,
)

__all__ = [
    "FIELDS",
    "OWN_SELECTION",
    "PAPERS",
    "REPO",
    "Item",
    "PlannedRun",
    "ReproduceError",
    "Row",
    "Setup",
    "UsageError",
    "absolute",
    "all_items",
    "format_value",
    "has_other_rounds",
    "has_settings",
    "in_its_folder",
    "load_item",
    "other_settings",
    "own_items",
    "planned_runs",
    "read_item",
    "settings_of_file",
]
