"""The tree in one process and in virtual time: a seed decides requests and faults, an oracle judges every step.

    plan.py                what a seed draws: requests, answers, faults
    world.py               one run of a plan, on the simulated broker of ``kafka``
    tree                   the real cores of the services, and scripted workers
    judge                  what must hold after every step, and at the end
    runs.py                many runs, in one process or in several
    failing_run.py         a failing run: its fewest faults, drawn

Nothing here does I/O, and no service imports it. It is the only package that imports the cores of several services.
"""
