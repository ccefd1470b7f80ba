package tailrace.replay;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The streaming source {@code tailrace-replay}: delivers the records of a trace file at their due
 * times, in micro-batches and in real-time mode.
 */
public final class ReplaySource implements TableProvider, DataSourceRegister {
  private static final StructType SCHEMA =
      new StructType()
          .add("seq", DataTypes.LongType, false)
          .add("due", DataTypes.TimestampType, false)
          .add("key", DataTypes.StringType, false)
          .add("payload", DataTypes.StringType, false);

  @Override
  public String shortName() {
    return "tailrace-replay";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return SCHEMA;
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    ReplayOptions options = ReplayOptions.of(new CaseInsensitiveStringMap(properties));
    Trace.open(options.trace()); // errors in the trace are raised at load()
    return new Replay(options);
  }

  /** A trace as a table that can only be streamed. */
  private record Replay(ReplayOptions options) implements SupportsRead {
    @Override
    public String name() {
      return "tailrace-replay " + options.trace();
    }

    @Override
    public Column[] columns() {
      return Arrays.stream(SCHEMA.fields())
          .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
          .toArray(Column[]::new);
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap scanOptions) {
      return () -> new ReplayScan(options);
    }
  }

  /** One use of this table in a query. */
  private record ReplayScan(ReplayOptions options) implements Scan {
    @Override
    public StructType readSchema() {
      return SCHEMA;
    }

    @Override
    public String description() {
      return "tailrace-replay " + options.trace() + " partitions=" + options.partitions();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      return new ReplayStream(options);
    }
  }
}
