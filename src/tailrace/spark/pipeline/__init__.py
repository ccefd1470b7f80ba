"""From a pipeline function to a Spark plan."""
