import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;

/**
 * The two ends of the Flink job: a source that emits each record when it is due, and a sink that
 * notes how late each came.
 *
 * <p>PyFlink has no sources or sinks in Python, and Flink's own generator waits for its rate limiter
 * on another thread at each record, which would hold the peer back. Tailrace's own source and sink
 * are Java as well.
 */
public final class PacedLoad {
  private static final long WARM_UP = -1;
  private static final int KEYS = 1000;
  private static final long PAUSE_US = 300_000;
  private static final long GRACE_US = 500_000;

  private PacedLoad() {}

  private static long nowUs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
  }

  /** Emits record i at its due time t0 + i / rate; what is late is emitted at once. */
  public static final class Source implements SourceFunction<Tuple3<Long, Long, String>> {
    private static final long serialVersionUID = 1;

    private final double ratePerS;
    private final double warmUpS;
    private final double seconds;
    private volatile boolean running = true;

    public Source(double ratePerS, double warmUpS, double seconds) {
      this.ratePerS = ratePerS;
      this.warmUpS = warmUpS;
      this.seconds = seconds;
    }

    @Override
    public void run(SourceContext<Tuple3<Long, Long, String>> out) {
      String[] keys = new String[KEYS];
      Arrays.setAll(keys, i -> "key-" + i);
      emit(out, keys, warmUpS, true);
      emit(out, keys, seconds, false);
    }

    /** The backlog of a cold start is not carried into the measurement, which has its own t0. */
    private void emit(
        SourceContext<Tuple3<Long, Long, String>> out, String[] keys, double lasts, boolean warmUp) {
      long records = Math.round(ratePerS * lasts);
      long startUs = nowUs() + PAUSE_US;
      long giveUpUs = startUs + Math.round(lasts * 1e6) + (warmUp ? 0 : GRACE_US);
      long now = nowUs();
      for (long i = 0; i < records && running && now < giveUpUs; i++) {
        long dueUs = startUs + Math.round(i * 1e6 / ratePerS);
        while ((now = nowUs()) < dueUs) {
          LockSupport.parkNanos((dueUs - now) * 1000);
        }
        long seq = warmUp ? WARM_UP : i;
        out.collect(Tuple3.of(seq, dueUs, keys[(int) (i % KEYS)]));
      }
    }

    @Override
    public void cancel() {
      running = false;
    }
  }

  /** Notes now - due of each record, and writes their statistics into a file when the job ends. */
  public static final class Sink extends RichSinkFunction<Tuple3<Long, Long, String>> {
    private static final long serialVersionUID = 1;

    private final String file;
    private final int sent;
    private transient long[] latencies;
    private transient int received;

    public Sink(String file, double ratePerS, double seconds) {
      this.file = file;
      this.sent = Math.toIntExact(Math.round(ratePerS * seconds));
    }

    @Override
    public void open(OpenContext context) {
      latencies = new long[sent];
    }

    @Override
    public void invoke(Tuple3<Long, Long, String> record, Context context) {
      if (record.f0 != WARM_UP) {
        latencies[received++] = nowUs() - record.f1;
      }
    }

    @Override
    public void close() throws IOException {
      int part = Math.max(1, received / 5);
      long first = quantile(Arrays.copyOfRange(latencies, 0, part), 0.5);
      long last = quantile(Arrays.copyOfRange(latencies, Math.max(0, received - part), received), 0.5);
      long[] all = Arrays.copyOf(latencies, received);
      String line =
          String.format(
              Locale.ROOT,
              "{\"records\": %d, \"p50_ms\": %.3f, \"p95_ms\": %.3f, \"p99_ms\": %.3f,"
                  + " \"drift_ms\": %.3f, \"sent\": %d, \"received\": %d}",
              received,
              quantile(all, 0.5) / 1e3,
              quantile(all, 0.95) / 1e3,
              quantile(all, 0.99) / 1e3,
              (last - first) / 1e3,
              sent,
              received);
      Files.writeString(Path.of(file), line);
    }

    private static long quantile(long[] values, double q) {
      if (values.length == 0) {
        return 0;
      }
      Arrays.sort(values);
      return values[Math.min(values.length - 1, (int) (q * values.length))];
    }
  }
}
