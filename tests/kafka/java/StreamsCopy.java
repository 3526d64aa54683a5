import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** Copies one topic to another exactly once until it is stopped: BOOTSTRAP FROM TO FOLDER. Prints each state. */
public class StreamsCopy {
    public static void main(String[] words) throws Exception {
        var options = new Properties();
        options.put("bootstrap.servers", words[0]);
        options.put("application.id", words[2]);
        options.put("processing.guarantee", "exactly_once_v2");
        options.put("state.dir", words[3]);
        options.put("default.key.serde", Serdes.BytesSerde.class);
        options.put("default.value.serde", Serdes.BytesSerde.class);
        var builder = new StreamsBuilder();
        builder.stream(words[1]).to(words[2]);
        var streams = new KafkaStreams(builder.build(), options);
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
