"""What every worker does: takes requests up, runs them on an engine, tells the stream log. A library."""
