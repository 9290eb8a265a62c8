"""A short soak: many programs in a pool that holds a few of them. `make soak` runs the long one."""

from soak import Report, soak

from system_rig import in_loop


def test_a_short_soak_leaks_nothing_and_every_survivor_says_what_it_says_alone() -> None:
    async def scenario() -> None:
        report: Report = await soak(seed=7, seconds=2.0, num_live=60, num_blocks=48, num_plans=16)
        assert not report.wrong, report.wrong[0]
        assert report.ended["ok"] > 20
        assert report.ended["cancelled"] > 0
        assert report.ended["program_error"] > 0

    in_loop(scenario)
