"""The batch service: submits the lines of jobs as requests of the lane ``batch``, and collects their results."""
