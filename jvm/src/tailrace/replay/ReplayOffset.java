package tailrace.replay;

import java.util.Arrays;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * The progress of a replay: for each partition the index of the next record in its own subsequence.
 * It includes the start of the replay, so that a restart keeps every due time.
 */
final class ReplayOffset extends Offset {
  private static final Pattern JSON =
      Pattern.compile("\\{\"startUs\":(\\d{1,18}),\"next\":\\[(\\d{1,9}(?:,\\d{1,9})*)]}");

  private final long startUs;
  private final int[] next;

  ReplayOffset(long startUs, int[] next) {
    this.startUs = startUs;
    this.next = next;
  }

  static ReplayOffset parse(String json) {
    Matcher match = JSON.matcher(json);
    if (!match.matches()) {
      throw new IllegalArgumentException(
          "The checkpoint holds " + json + ", which is no replay offset; use a new checkpoint.");
    }
    int[] next = Arrays.stream(match.group(2).split(",")).mapToInt(Integer::parseInt).toArray();
    return new ReplayOffset(Long.parseLong(match.group(1)), next);
  }

  long startUs() {
    return startUs;
  }

  int partitions() {
    return next.length;
  }

  int next(int partition) {
    return next[partition];
  }

  @Override
  public String json() {
    String list = Arrays.stream(next).mapToObj(Integer::toString).collect(Collectors.joining(","));
    return "{\"startUs\":" + startUs + ",\"next\":[" + list + "]}";
  }
}
