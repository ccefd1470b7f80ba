package tailrace.probe;

import java.io.Serializable;
import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * How old records were: their count, mean and sum of squared deviations, and logarithmic bins.
 *
 * <p>Consecutive records have about the same age, so the bin of a record is usually that of the
 * previous one, and no logarithm is needed.
 */
final class Ages implements Serializable {
  private static final long serialVersionUID = 1L;

  /**
   * The bins: up to {@code smallestMs} bin 0, and each further end {@code gamma} times the last.
   */
  record Scale(double smallestMs, double gamma) implements Serializable {
    private int bin(long ageUs) {
      double ratio = Math.max(1.0, ageUs / 1e3 / smallestMs);
      return (int) Math.ceil(Math.log(ratio) / Math.log(gamma) - 1e-9);
    }

    /** The last whole microsecond of each bin up to an hour. */
    private long[] endsUs() {
      long[] ends = new long[bin(3_600_000_000L)];
      for (int bin = 0; bin < ends.length; bin++) {
        long end = (long) (smallestMs * 1e3 * Math.pow(gamma, bin));
        ends[bin] = bin(end) > bin ? end - 1 : bin(end + 1) > bin ? end : end + 1;
      }
      return ends;
    }
  }

  private static final ConcurrentMap<Scale, long[]> ENDS = new ConcurrentHashMap<>();

  private final Scale scale;
  private final transient long[] endsUs;
  private long[] bins = new long[256];
  private int bin;
  private int highest;
  private long count;
  private long firstUs;
  private long sum;
  private double squares;

  Ages(Scale scale) {
    this.scale = scale;
    endsUs = ENDS.computeIfAbsent(scale, Scale::endsUs);
  }

  long count() {
    return count;
  }

  void add(long ageUs) {
    findBin(ageUs);
    bins[bin]++;
    if (count++ == 0) {
      firstUs = ageUs;
    }
    long beyond = ageUs - firstUs; // squares of small numbers lose no digits
    sum += beyond;
    squares += (double) beyond * beyond;
  }

  private void findBin(long ageUs) {
    if (bin < endsUs.length && ageUs <= endsUs[bin] && (bin == 0 || ageUs > endsUs[bin - 1])) {
      return;
    }
    int low = 0;
    int high = endsUs.length;
    while (low < high) {
      int middle = (low + high) >>> 1;
      if (endsUs[middle] < ageUs) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    bin = low < endsUs.length ? low : scale.bin(ageUs);
    if (bin >= bins.length) {
      bins = Arrays.copyOf(bins, Math.max(bin + 1, 2 * bins.length));
    }
    highest = Math.max(highest, bin);
  }

  void clear() {
    Arrays.fill(bins, 0, highest + 1, 0);
    highest = bin; // where the next one may be counted without a search
    count = 0;
    sum = 0;
    squares = 0;
  }

  double meanMs() {
    return count == 0 ? 0.0 : (firstUs + (double) sum / count) / 1e3;
  }

  /** The sum of squared deviations from the mean, in square milliseconds. */
  double m2() {
    return count == 0 ? 0.0 : Math.max(0.0, squares - (double) sum * sum / count) / 1e6;
  }

  /** Each bin that is not empty, and how many it holds. */
  void print(StringBuilder text, String before, String between, String after) {
    String separator = "";
    for (int i = 0; i <= highest; i++) {
      if (bins[i] > 0) {
        text.append(separator).append(before).append(i).append(between).append(bins[i]);
        separator = after;
      }
    }
  }
}
