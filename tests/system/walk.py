# SPDX-License-Identifier: Apache-2.0
"""A walk with a closed form, x -> MULTIPLIER x + INCREMENT in 64 bits: the state of trainings whose every byte is known after any number of steps."""

MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407
MASK = 2**64 - 1


def after(steps: int) -> "tuple[int, int]":
    """(a, c) of x -> a x + c, which is so many steps; composed by squaring."""
    a, c = 1, 0
    step_a, step_c = MULTIPLIER, INCREMENT
    while steps:
        if steps & 1:
            a, c = a * step_a & MASK, (c * step_a + step_c) & MASK
        step_a, step_c = step_a * step_a & MASK, (step_c * step_a + step_c) & MASK
        steps >>= 1
    return a, c
