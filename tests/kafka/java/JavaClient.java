import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.header.Header;

/** Does what programs do with Kafka and prints what it saw: {@code java JavaClient.java bootstrap topic [protocol]}. */
public class JavaClient {
    static final Map<String, Object> seen = new LinkedHashMap<>();
    static final long WAIT_MS = 30_000;
    static String bootstrap;
    static String topic;
    static String protocol;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        protocol = args.length > 2 ? args[2] : "classic";
        try (Admin admin = Admin.create(common())) {
            create(admin);
            produce();
            consume(admin);
            transact();
            fence();
            administrate(admin);
        }
        System.out.println(new ObjectMapper().writeValueAsString(seen));
        System.exit(0);
    }

    static Map<String, Object> common(Object... more) {
        Map<String, Object> found = new HashMap<>();
        found.put("bootstrap.servers", bootstrap);
        for (int at = 0; at < more.length; at += 2) found.put((String) more[at], more[at + 1]);
        return found;
    }

    static KafkaProducer<String, String> producer(Object... more) {
        Map<String, Object> options = common(more);
        options.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        options.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return new KafkaProducer<>(options);
    }

    static KafkaConsumer<String, String> consumer(String group, Object... more) {
        Map<String, Object> options = common(more);
        options.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        options.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        options.put("group.id", group);
        options.put("auto.offset.reset", "earliest");
        options.put("enable.auto.commit", false);
        options.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            options.put("heartbeat.interval.ms", 200);
            options.putIfAbsent("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        return new KafkaConsumer<>(options);
    }

    static void create(Admin admin) throws Exception {
        NewTopic wanted = new NewTopic(topic, 2, (short) 3).configs(Map.of("retention.ms", "86400000"));
        admin.createTopics(List.of(wanted)).all().get(WAIT_MS, TimeUnit.MILLISECONDS);
        var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        seen.put("partitions", found.partitions().size());
        seen.put("listed", admin.listTopics().names().get().contains(topic));
        seen.put("nodes", admin.describeCluster().nodes().get().size());
    }

    static void produce() throws Exception {
        List<Long> offsets = new ArrayList<>();
        for (String kind : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (var producer = producer("compression.type", kind)) {
                for (String value : new String[] {kind, null}) {
                    var record = new ProducerRecord<>(topic, 0, 1_000L * (offsets.size() + 1), "k", value);
                    record.headers().add("h", kind.getBytes()).add("n", null);
                    offsets.add(producer.send(record).get().offset());
                }
            }
        }
        try (var producer = producer()) {
            for (int number = 0; number < 5; number++)
                producer.send(new ProducerRecord<>(topic, 1, null, "other" + number));
        }
        seen.put("offsets", offsets);
    }

    static void consume(Admin admin) throws Exception {
        String group = topic + " group";
        List<ConsumerRecord<String, String>> first = new ArrayList<>();
        try (var one = consumer(group, "client.id", "one"); var two = consumer(group, "client.id", "two")) {
            one.subscribe(List.of(topic));
            read(one, 15, first);
            two.subscribe(List.of(topic));
            long end = System.currentTimeMillis() + WAIT_MS;
            while (one.assignment().size() != 1 || two.assignment().size() != 1) {
                one.poll(Duration.ofMillis(50)).forEach(first::add);
                two.poll(Duration.ofMillis(50));
                if (System.currentTimeMillis() > end) throw new IllegalStateException("no rebalance");
            }
            seen.put("shared", one.assignment().size() + two.assignment().size());
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Set<String> clients = new TreeSet<>();
            described.members().forEach(member -> clients.add(member.clientId()));
            seen.put("members", clients);
            seen.put("state", described.groupState().toString());
            for (var each : List.of(one, two)) {
                TopicPartition at = each.assignment().iterator().next();
                each.commitSync(Map.of(at, new OffsetAndMetadata(4, "noted")));
            }
        }
        var stored = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        seen.put("committed", stored.values().stream().map(one -> one.offset() + one.metadata()).toList());
        try (var again = consumer(group)) {
            again.subscribe(List.of(topic));
            seen.put("resumed", read(again, 7, new ArrayList<>()).size());
            TopicPartition at = new TopicPartition(topic, 0);
            seen.put("byTime", again.offsetsForTimes(Map.of(at, 2_500L)).get(at).offset());
            seen.put("ends", new TreeMap<>(Map.of("first", again.beginningOffsets(Set.of(at)).get(at),
                "last", again.endOffsets(Set.of(at)).get(at))));
        }
        List<Object> rows = new ArrayList<>();
        for (var record : first)
            if (record.partition() == 0)
                rows.add(Arrays.asList(record.offset(), record.key(), record.value(), record.timestamp(), headers(record)));
        seen.put("records", rows);
    }

    static Map<String, String> headers(ConsumerRecord<String, String> record) {
        Map<String, String> found = new TreeMap<>();
        for (Header header : record.headers())
            found.put(header.key(), header.value() == null ? null : new String(header.value()));
        return found;
    }

    static List<ConsumerRecord<String, String>> read(
            KafkaConsumer<String, String> from, int count, List<ConsumerRecord<String, String>> found) {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (found.size() < count) {
            from.poll(Duration.ofMillis(100)).forEach(found::add);
            if (System.currentTimeMillis() > end) throw new IllegalStateException("only " + found.size());
        }
        return found;
    }

    static void transact() throws Exception {
        String output = topic + "-out";
        try (var producer = producer("transactional.id", topic);
                var input = consumer(topic + "-tx", "isolation.level", "read_committed")) {
            producer.initTransactions();
            input.subscribe(List.of(topic));
            var found = read(input, 15, new ArrayList<>());
            for (boolean commits : new boolean[] {false, true}) {
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> at = new HashMap<>();
                for (var record : found) {
                    producer.send(new ProducerRecord<>(output, record.key(), commits + ":" + record.value()));
                    at.merge(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1),
                        (a, b) -> a.offset() > b.offset() ? a : b);
                }
                producer.sendOffsetsToTransaction(at, input.groupMetadata());
                if (commits) producer.commitTransaction();
                else producer.abortTransaction();
            }
            var stored = input.committed(Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)));
            seen.put("txOffsets", stored.values().stream().mapToLong(OffsetAndMetadata::offset).sum());
        }
        try (var reader = consumer(topic + "-check", "isolation.level", "read_committed")) {
            reader.subscribe(List.of(output));
            var found = read(reader, 15, new ArrayList<>());
            reader.poll(Duration.ofMillis(200)).forEach(found::add);
            seen.put("txOutputs", found.stream().filter(record -> record.value().startsWith("true:")).count());
            seen.put("txAll", found.size());
        }
    }

    static void fence() {
        try (var earlier = producer("transactional.id", topic + "-fence");
                var later = producer("transactional.id", topic + "-fence")) {
            earlier.initTransactions();
            earlier.beginTransaction();
            later.initTransactions();
            try {
                earlier.send(new ProducerRecord<>(topic + "-out", "k", "never"));
                earlier.commitTransaction();
                seen.put("fenced", false);
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                seen.put("fenced", true);
            }
        }
    }

    static void administrate(Admin admin) throws Exception {
        var at = new TopicPartition(topic, 0);
        admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(3))).all().get();
        seen.put("earliest", admin.listOffsets(Map.of(at, OffsetSpec.earliest())).all().get().get(at).offset());
        seen.put("greatest", admin.listOffsets(Map.of(at, OffsetSpec.maxTimestamp())).all().get().get(at).offset());
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var change = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        var configs = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        seen.put("retention", configs.get("retention.ms").value());
        String group = topic + " group";
        seen.put("groups", admin.listGroups().all().get().stream().anyMatch(row -> row.groupId().equals(group)));
        admin.alterConsumerGroupOffsets(group, Map.of(at, new OffsetAndMetadata(9))).all().get();
        seen.put("altered", admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(at).offset());
        admin.deleteConsumerGroups(List.of(group)).all().get();
        admin.deleteTopics(List.of(topic)).all().get();
        seen.put("deleted", !admin.listTopics().names().get().contains(topic));
    }
}
