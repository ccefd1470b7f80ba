package tailrace.handover;

import java.io.Serializable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * How long the open batch of a chain may wait for more records, and how long for the first.
 *
 * <p>The driver sets both by the name of the chain. A task takes the values along that held when
 * its batch was planned; where driver and tasks share a JVM, as in local mode, a change of the
 * lifetime reaches running tasks at once.
 */
public final class Lifetime implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final ConcurrentMap<String, AtomicLong> NANOS = new ConcurrentHashMap<>();
  private static final ConcurrentMap<String, Long> TICKS = new ConcurrentHashMap<>();

  private final String chain;
  private final long planned;
  private final long tickNanos;

  private Lifetime(String chain) {
    this.chain = chain;
    planned = live(chain).get();
    tickNanos = TICKS.getOrDefault(chain, Long.MAX_VALUE);
  }

  static Lifetime of(String chain) {
    return new Lifetime(chain);
  }

  /** Sets the lifetime of a chain's open batches; 0 sends what is there whenever Python is free. */
  public static void set(String chain, double ms) {
    live(chain).set(Math.round(ms * 1e6));
  }

  /** Has an empty batch sent to a chain when no record came for so long, so that time passes. */
  public static void setTick(String chain, double ms) {
    TICKS.put(chain, Math.round(ms * 1e6));
  }

  /** Makes the value of the driver known where a task runs. */
  void arrive() {
    NANOS.putIfAbsent(chain, new AtomicLong(planned));
  }

  long nanos() {
    return live(chain).get();
  }

  long tickNanos() {
    return tickNanos;
  }

  private static AtomicLong live(String chain) {
    return NANOS.computeIfAbsent(chain, unknown -> new AtomicLong());
  }
}
