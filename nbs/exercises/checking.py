"""Run the tests of an exercise and print a line for each."""


def check(*tests) -> bool:
    "Run each test; print whether it passed, or why not. Whether all of them passed."
    passed = [_passes(test) for test in tests]
    print(f"{sum(passed)} of {len(passed)} tests pass")
    return all(passed)


def _passes(test) -> bool:
    name = test.__name__.removeprefix("test_").replace("_", " ")
    try:
        test()
    except NotImplementedError:
        print(f"TO DO   {name}")
    except Exception as error:  # whatever a student's code raises, the other tests should run
        reason = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        print(f"FAILED  {name}: {reason[:200]}")
    else:
        print(f"passed  {name}")
        return True
    return False
