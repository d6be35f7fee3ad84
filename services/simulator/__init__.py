"""Run all services in one process and in virtual time, with faults, and check that each promise holds.

    plan.py                draws requests, answers and faults, which a seed determines
    world.py               runs one plan, on the simulated broker of ``kafka``
    tree                   the services, with their real cores, and with workers whose answers are scripted
    judge                  checks what must hold after every step, and at the end
    runs.py                runs many seeds, in one process or in several
    failing_run.py         explains a failing run, with as few faults as possible

A core makes the decisions of a service, without I/O (``services/processor/core.py``). A promise is a property that must
hold in every run. No service imports this package, and only this package imports the cores of several services.
"""
