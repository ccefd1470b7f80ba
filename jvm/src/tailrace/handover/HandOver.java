package tailrace.handover;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.BaseArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.execution.python.PythonUDFRunner;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;
import tailrace.pacing.Clock;
import tailrace.probe.SinkProbe;
import tailrace.probe.Tag;

/**
 * Runs a chain of Python steps on records that arrive one by one.
 *
 * <p>Spark's own operator asks for the next record before it sends an Arrow batch, so a record
 * waits for its successor, and it sends batches of a fixed size. This one collects records in an
 * {@link OpenBatch} that is sent when it is old enough or full: the output batch of Lohrmann 2016,
 * section 4.5.2, whose lifetime can be changed while it runs.
 */
public final class HandOver extends SparkPlan {
  private static final long serialVersionUID = 1L;
  private static final String CHAIN = "tailrace:";

  private final MapInArrowExec original;
  private final SinkProbe probe;

  private HandOver(MapInArrowExec original, SinkProbe probe) {
    this.original = original;
    this.probe = probe;
  }

  /** The replacement for Spark's own operator. */
  public static HandOver of(MapInArrowExec original) {
    return new HandOver(original, null);
  }

  /** The same operator, with a probe for the records that leave it. */
  public HandOver seenBy(SinkProbe probe) {
    return new HandOver(original, probe);
  }

  /** Whether an operator runs a chain of steps, and not a user's own function. */
  public static boolean isChain(MapInArrowExec map) {
    return map.func() instanceof PythonUDF udf && udf.name().startsWith(CHAIN);
  }

  private String chain() {
    return ((PythonUDF) original.func()).name().substring(CHAIN.length());
  }

  @Override
  public boolean supportsColumnar() {
    return true;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    throw new UnsupportedOperationException("A hand-over gives columns.");
  }

  @Override
  public RDD<ColumnarBatch> doExecuteColumnar() {
    RDD<InternalRow> input = InputProjection.source(original.child()).execute();
    return input.mapPartitionsWithIndexInternal(
        new Run(original, Lifetime.of(FlowId.planned(sparkContext()), chain()), probe),
        false,
        false,
        false,
        ClassTag$.MODULE$.apply(ColumnarBatch.class));
  }

  @Override
  public Seq<Attribute> output() {
    return original.output();
  }

  @Override
  public AttributeSet producedAttributes() {
    return original.producedAttributes();
  }

  @Override
  public Partitioning outputPartitioning() {
    return original.outputPartitioning();
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return original.metrics();
  }

  @Override
  public Seq<SparkPlan> children() {
    return original.children();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new HandOver((MapInArrowExec) original.withNewChildren(children), probe);
  }

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int index) {
    return original;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof HandOver;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof HandOver that
        && original.equals(that.original)
        && probe == that.probe;
  }

  @Override
  public int hashCode() {
    return original.hashCode();
  }

  /** The work of a task, with everything that it needs. */
  private static final class Run
      extends AbstractFunction2<Object, Iterator<InternalRow>, Iterator<ColumnarBatch>>
      implements java.io.Serializable {
    private static final long serialVersionUID = 1L;

    private final Lifetime lifetime;
    private final SinkProbe probe;
    private final Seq<Tuple2<ChainedPythonFunctions, Object>> functions;
    private final int evalType;
    private final StructType input;
    private final InputProjection projection;
    private final int tag;
    private final String timeZone;
    private final boolean largeTypes;
    private final Map<String, String> settings;
    private final Map<String, SQLMetric> metrics;

    Run(MapInArrowExec original, Lifetime lifetime, SinkProbe probe) {
      PythonUDF udf = (PythonUDF) original.func();
      ChainedPythonFunctions function = new ChainedPythonFunctions(listed(udf.func()));
      this.lifetime = lifetime;
      this.probe = probe;
      functions = listed(new Tuple2<>(function, udf.resultId().id()));
      evalType = original.pythonEvalType();
      input = original.child().schema();
      projection = InputProjection.of(original.child());
      tag = Arrays.asList(original.schema().fieldNames()).indexOf(Tag.NAME);
      timeZone = original.conf().sessionLocalTimeZone();
      largeTypes = original.conf().arrowUseLargeVarTypes();
      settings = ArrowPythonRunner.getPythonRunnerConfMap(original.conf());
      metrics = original.pythonMetrics();
    }

    @Override
    @SuppressWarnings("unchecked") // the runner's results are what it deserialises
    public Iterator<ColumnarBatch> apply(Object index, Iterator<InternalRow> records) {
      TaskContext context = TaskContext.get();
      Unbuffered runner = new Unbuffered(this);
      OpenBatch batches = new OpenBatch(records, projection, runner.fields(), lifetime, context);
      Iterator<ColumnarBatch> results = runner.compute(batches, context.partitionId(), context);
      batches.start();
      return new Returned(results, batches, tag, probe == null ? null : probe.task(context));
    }
  }

  /** Sends and receives at the same time, without buffering. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Scala's types say more than Java's
  private static final class Unbuffered extends BaseArrowPythonRunner {
    /** The buffer size from which data is sent at once: so small that nothing is held back. */
    private static final int NO_BUFFER = 8;

    private static final int RECEIVED = 1 << 17;

    /** The variable that marks a worker as one of ours. */
    private static final String WORKER = "TAILRACE_HAND_OVER";

    private static final int[][] ARGUMENTS = {{0}};

    private final Run task;

    Unbuffered(Run task) {
      super(
          task.functions, task.evalType, ARGUMENTS, new StructType().add("struct", task.input),
          task.timeZone, task.largeTypes, task.metrics, Option.empty(), Option.empty());
      this.task = task;
      envVars().put(WORKER, "1");
    }

    /** The columns that Python gets, inside one struct. */
    List<Field> fields() {
      return root().getSchema().getFields().get(0).getChildren();
    }

    @Override
    public boolean pipelinedEnabled() {
      return true;
    }

    @Override
    public int bufferSize() {
      return NO_BUFFER;
    }

    @Override
    public Map<String, String> runnerConf() {
      return (Map) super.runnerConf().concat(task.settings);
    }

    @Override
    public void writeUDF(DataOutputStream out) {
      PythonUDFRunner.writeUDFs(out, task.functions, ARGUMENTS);
    }

    @Override
    public boolean writeNextBatchToArrowStream(
        VectorSchemaRoot root, ArrowStreamWriter writer, DataOutputStream out, Iterator pages) {
      if (!pages.hasNext()) {
        close();
        return false;
      }
      int before = out.size();
      try (ArrowRecordBatch batch = ((Page) pages.next()).batch()) {
        MessageSerializer.serialize(new WriteChannel(Channels.newChannel(out)), batch);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      task.metrics.apply("pythonDataSent").add(out.size() - before);
      return true;
    }

    @Override
    public Iterator newReaderIterator(
        DataInputStream stream, BasePythonRunner.Writer writer, long started, SparkEnv env,
        PythonWorker worker, Option handle, AtomicBoolean released, TaskContext context) {
      DataInputStream input = new DataInputStream(new BufferedInputStream(stream, RECEIVED));
      return super.newReaderIterator(
          input, writer, started, env, worker, handle, released, context);
    }

    @Override
    public Object deserializeColumnarBatch(ColumnarBatch batch, StructType schema) {
      return batch;
    }
  }

  @SuppressWarnings("deprecation") // the replacement is Scala's own and not for Java
  private static <T> Seq<T> listed(T only) {
    return JavaConverters.asScalaBuffer(Arrays.asList(only)).toList();
  }

  /** The batches that come back, and when each of them has been processed. */
  private static final class Returned extends AbstractIterator<ColumnarBatch> {
    private final Iterator<ColumnarBatch> results;
    private final OpenBatch origin;
    private final int tag;
    private final SinkProbe.Task probe;
    private ValueVector struct;
    private BorrowedColumn[] columns;
    private ColumnarBatch given;
    private long givenUs;

    Returned(Iterator<ColumnarBatch> results, OpenBatch origin, int tag, SinkProbe.Task probe) {
      this.results = results;
      this.origin = origin;
      this.tag = tag;
      this.probe = probe;
    }

    @Override
    public boolean hasNext() {
      if (given != null && probe != null) {
        probe.see(tag < 0 ? null : columns[tag], given.numRows(), givenUs);
      }
      given = null;
      return results.hasNext();
    }

    @Override
    public ColumnarBatch next() {
      ColumnarBatch batch = results.next();
      origin.returned();
      given = flattened(batch);
      givenUs = probe == null ? 0 : Clock.nowUs();
      return given;
    }

    /** Python returns one column, a struct of all columns, always in the same vectors. */
    private ColumnarBatch flattened(ColumnarBatch batch) {
      ValueVector vector = ((ArrowColumnVector) batch.column(0)).getValueVector();
      if (vector != struct) {
        struct = vector;
        columns =
            ((StructVector) vector)
                .getChildrenFromFields().stream()
                    .map(BorrowedColumn::new)
                    .toArray(BorrowedColumn[]::new);
      }
      for (BorrowedColumn column : columns) {
        column.look();
      }
      return new ColumnarBatch(columns, batch.numRows());
    }
  }
}
