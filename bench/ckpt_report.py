# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/ckpt_save: medians, ratios with their 95 % intervals, and which goals are met."""

import ckpt_names as names
from report import median_with_interval, ratio_of

GOAL_REPEATED = {"large": 0.67, "small": 0.33, "mixed": 0.67}
GOAL_FIRST, GOAL_STORED = 0.15, 1.0
GOAL_VIEWS_S = 0.010


def print_rows(title: str, ours: "list[float]", ways: "dict[str, list[float]]", goal: "float | None" = None, notes: "dict[str, str] | None" = None) -> bool:
    """False: ours beside DLRover's misses the goal, by more than the noise."""
    print(f"  {title}")
    good = True
    for name, values in ways.items():
        note = (notes or {}).get(name, "")
        if values is not ours:
            ratio, low, high = ratio_of(ours, values)
            note = f"   ours takes {ratio:.2f} [{low:.2f}, {high:.2f}] of it" + note
            if name == names.FLASH and goal is not None:
                note += f"   goal <= {goal:.2f}"
                good = low <= goal
        print(f"    {name:40}{median_with_interval(values)[0] * 1e3:10.1f} ms{note}")
    return good


def bound_note(rows: "dict[str, list[float]]", bound: str) -> "dict[str, str]":
    """How much of DLRover's time is not ours to save."""
    if bound not in rows or names.FLASH not in rows:
        return {}
    ratio, low, high = ratio_of(rows[bound], rows[names.FLASH])
    return {bound: f"   it takes {ratio:.2f} [{low:.2f}, {high:.2f}] of DLRover's"}


def report_saves(state: str, seen: "dict[str, dict]") -> bool:
    good = True
    for title, key, goal, bound in (("repeated saves", "repeated", GOAL_REPEATED[state], names.COPY_ALONE),
                                    ("first save of a process", "first", GOAL_FIRST, names.FRESH_PAGES),
                                    ("the next two saves of such a process at once, in slots whose pages are new, too", "other slots", None, names.FRESH_PAGES),
                                    ("first save after an optimizer's step, which makes memory ready", "first prepared", GOAL_FIRST, "")):
        rows = {name: way[key] for name, way in seen.items() if way[key]}
        if names.OURS not in rows:
            continue
        if not bound:
            rows.pop(names.FRESH_PAGES, None)  # what was prepared needs none
        met = print_rows(f"{title}, {len(rows[names.OURS])} of each", rows[names.OURS], rows, goal, bound_note(rows, bound))
        good = good and (met or key == "first")
    skipped = {name: way["skipped"] for name, way in seen.items() if way["skipped"]}
    print(f"  skipped: {skipped or 'none'}")
    return good and names.OURS not in skipped


def report_flushes(seen: "dict[str, dict]") -> bool:
    rows = {name: way["seconds"] for name, way in seen.items()}
    good = print_rows("from the call until it is on storage (DLRover without fsync, all others with it)", rows[names.OURS], rows, GOAL_STORED)
    for name, way in seen.items():
        if way["tried"]:
            print(f"  saves while one goes to storage, {name}: {way['taken']} of {way['tried']} taken" + ("   goal: all" if name == names.OURS else ""))
    return good and seen[names.OURS]["taken"] == seen[names.OURS]["tried"] > 0


def report_restores(state: str, groups: "dict[str, dict[str, dict]]") -> bool:
    """False: views of the large state take longer than they may, by more than the noise."""
    good = True
    for group, ways in groups.items():
        mine = names.OURS_OF_GROUP[group]
        for title, key in ((names.GROUPS[group], "repeated"), (f"{names.GROUPS[group]}, the first of a process", "first")):
            rows = {name: way[key] for name, way in ways.items() if way[key]}
            if mine not in rows:
                continue
            opened = median_with_interval(ways[mine]["opened" if key == "repeated" else "first opened"])[0]
            notes = {mine: f"   of which opening (checksums that the node has not compared by then, too): {opened * 1e3:.1f} ms"}
            if group == "views" and state == "large":
                median, low, high = median_with_interval(rows[mine])
                notes[mine] += f"   [{low * 1e3:.1f}, {high * 1e3:.1f}], goal < {GOAL_VIEWS_S * 1e3:.0f} ms"
                good = good and low < GOAL_VIEWS_S
            print_rows(f"{title}, {len(rows[mine])} of each", rows[mine], rows, notes=notes)
    return good
