import java.io.FileInputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.clients.CommonClientConfigs;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.connector.policy.AllConnectorClientConfigOverridePolicy;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.runtime.Herder;
import org.apache.kafka.connect.runtime.Worker;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.runtime.WorkerConfigTransformer;
import org.apache.kafka.connect.runtime.distributed.DistributedConfig;
import org.apache.kafka.connect.runtime.distributed.DistributedHerder;
import org.apache.kafka.connect.runtime.distributed.NotLeaderException;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.runtime.rest.RestClient;
import org.apache.kafka.connect.runtime.standalone.StandaloneConfig;
import org.apache.kafka.connect.runtime.standalone.StandaloneHerder;
import org.apache.kafka.connect.storage.ConfigBackingStore;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.FileOffsetBackingStore;
import org.apache.kafka.connect.storage.KafkaConfigBackingStore;
import org.apache.kafka.connect.storage.KafkaOffsetBackingStore;
import org.apache.kafka.connect.storage.KafkaStatusBackingStore;
import org.apache.kafka.connect.storage.OffsetBackingStore;
import org.apache.kafka.connect.util.FutureCallback;
import org.apache.kafka.connect.util.SharedTopicAdmin;

/**
 * A worker of Kafka Connect without its HTTP server, whose jars are incomplete here.
 * {@code java ConnectWorker.java worker.properties connector.properties…}; a worker with a group.id is a distributed one.
 */
public class ConnectWorker {
    static final AllConnectorClientConfigOverridePolicy ANY = new AllConnectorClientConfigOverridePolicy();

    public static void main(String[] args) throws Exception {
        Map<String, String> options = properties(args[0]);
        Plugins plugins = new Plugins(options);
        plugins.compareAndSwapWithDelegatingLoader();
        Herder herder = options.containsKey("group.id") ? distributed(options, plugins) : standalone(options, plugins);
        herder.start();
        Runtime.getRuntime().addShutdownHook(new Thread(herder::stop));
        for (int at = 1; at < args.length; at++) {
            Map<String, String> connector = properties(args[at]);
            put(herder, connector);
            System.out.println("started " + connector.get("name"));
        }
        Thread.currentThread().join();
    }

    static Map<String, String> properties(String path) throws Exception {
        Properties found = new Properties();
        try (FileInputStream file = new FileInputStream(path)) {
            found.load(file);
        }
        Map<String, String> options = new HashMap<>();
        found.stringPropertyNames().forEach(name -> options.put(name, found.getProperty(name)));
        return options;
    }

    static void put(Herder herder, Map<String, String> connector) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (true) {
            var done = new FutureCallback<Herder.Created<org.apache.kafka.connect.runtime.rest.entities.ConnectorInfo>>();
            herder.putConnectorConfig(connector.get("name"), connector, true, done);
            try {
                done.get(60, TimeUnit.SECONDS);
                return;
            } catch (java.util.concurrent.ExecutionException error) {
                boolean early = error.getCause() instanceof NotLeaderException
                    || error.getCause() instanceof org.apache.kafka.connect.runtime.distributed.RebalanceNeededException;
                if (!early || System.currentTimeMillis() > end) throw error;
                Thread.sleep(100);
            }
        }
    }

    static Converter json(Plugins plugins) {
        return plugins.newInternalConverter(true, JsonConverter.class.getName(), Map.of("schemas.enable", "false"));
    }

    static Herder standalone(Map<String, String> options, Plugins plugins) {
        StandaloneConfig config = new StandaloneConfig(options);
        OffsetBackingStore offsets = new FileOffsetBackingStore(json(plugins));
        offsets.configure(config);
        Worker worker = new Worker("worker", Time.SYSTEM, plugins, config, offsets, ANY);
        return new StandaloneHerder(worker, config.kafkaClusterId(), ANY);
    }

    static Herder distributed(Map<String, String> options, Plugins plugins) {
        DistributedConfig config = new DistributedConfig(options);
        String base = config.groupId() + "-";
        Map<String, Object> admin = new HashMap<>(config.originals());
        admin.put(CommonClientConfigs.CLIENT_ID_CONFIG, base + "admin");
        SharedTopicAdmin topics = new SharedTopicAdmin(admin);
        KafkaOffsetBackingStore offsets = new KafkaOffsetBackingStore(topics, () -> base, json(plugins));
        offsets.configure(config);
        Worker worker = new Worker("worker", Time.SYSTEM, plugins, config, offsets, ANY);
        WorkerConfigTransformer transformer = worker.configTransformer();
        Converter converter = worker.getInternalValueConverter();
        KafkaStatusBackingStore status = new KafkaStatusBackingStore(Time.SYSTEM, converter, topics, base);
        status.configure(config);
        ConfigBackingStore configs = new KafkaConfigBackingStore(converter, config, transformer, topics, base);
        return new DistributedHerder(config, Time.SYSTEM, worker, config.kafkaClusterId(), status, configs,
            "http://127.0.0.1:1/", new RestClient(config), ANY, List.of(), topics);
    }
}
