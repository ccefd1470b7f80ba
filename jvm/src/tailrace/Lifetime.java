package tailrace;

import java.io.Serializable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * How long the open batch of a chain may wait for more records, by the name of the chain.
 *
 * <p>The driver sets it. A task takes the value along that held when its batch was planned; where
 * driver and tasks share a JVM, as in local mode, a change reaches running tasks at once.
 */
public final class Lifetime implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final ConcurrentMap<String, AtomicLong> NANOS = new ConcurrentHashMap<>();

  private final String chain;
  private final long planned;

  private Lifetime(String chain, long planned) {
    this.chain = chain;
    this.planned = planned;
  }

  static Lifetime of(String chain) {
    return new Lifetime(chain, nanos(chain).get());
  }

  /** Sets the lifetime of a chain's open batches; 0 sends what is there whenever Python is free. */
  public static void set(String chain, double ms) {
    nanos(chain).set(Math.round(ms * 1e6));
  }

  /** The value as tasks of this JVM see it. */
  AtomicLong here() {
    AtomicLong known = NANOS.putIfAbsent(chain, new AtomicLong(planned));
    return known == null ? NANOS.get(chain) : known;
  }

  private static AtomicLong nanos(String chain) {
    return NANOS.computeIfAbsent(chain, unknown -> new AtomicLong());
  }
}
