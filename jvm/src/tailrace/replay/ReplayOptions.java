package tailrace.replay;

import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The user's options for the replay source; a start or limit that was not given is null.
 */
record ReplayOptions(String trace, int partitions, Long startUs, Long maxRecordsPerBatch) {

  static ReplayOptions of(CaseInsensitiveStringMap map) {
    String trace = map.get("trace");
    if (trace == null || trace.isBlank()) {
      throw new IllegalArgumentException(
          "The replay source needs a trace; add .option(\"trace\", <path of a trace file>).");
    }
    Long partitions = number(map, "partitions", 1);
    return new ReplayOptions(
        trace,
        partitions == null ? 1 : Math.toIntExact(Math.min(partitions, Integer.MAX_VALUE)),
        number(map, "startUs", 0),
        number(map, "maxRecordsPerBatch", 1));
  }

  private static Long number(CaseInsensitiveStringMap map, String name, long least) {
    String text = map.get(name);
    if (text == null) {
      return null;
    }
    try {
      long value = Long.parseLong(text.trim());
      if (value >= least) {
        return value;
      }
    } catch (NumberFormatException notANumber) {
      // falls through to the sentence below, which fits both cases
    }
    throw new IllegalArgumentException(
        "The replay option " + name + " is \"" + text + "\"; give a whole number, at least "
            + least + ".");
  }
}
