"""From a pipeline function to a plan of Spark's."""
