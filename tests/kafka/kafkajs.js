// Produces, reads in a group, commits, looks up times and administers; prints what it saw as JSON.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs');
const [, , broker, topic] = process.argv;
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });

(async () => {
  const seen = {};
  const admin = kafka.admin();
  await admin.connect();
  seen.created = await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });

  const producer = kafka.producer({
    transactionalId: topic, idempotent: true, maxInFlightRequests: 1,
  });
  await producer.connect();
  await producer.send({
    topic, compression: CompressionTypes.GZIP,
    messages: [{ key: 'k', value: 'v1', headers: { a: '1' } }, { key: 'k', value: null }],
  });
  const lost = await producer.transaction();
  await lost.send({ topic, messages: [{ value: 'lost' }] });
  await lost.abort();
  const kept = await producer.transaction();
  await kept.send({ topic, messages: [{ value: 'kept' }] });
  await kept.commit();
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 300 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  seen.values = [];
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
    consumer.run({
      eachMessage: async ({ message }) => {
        seen.values.push(message.value && message.value.toString());
        if (seen.values.length === 1) seen.headers = { a: message.headers.a.toString() };
        if (seen.values.length === 3) resolve();
      },
    });
  });
  seen.groups = (await admin.listGroups()).groups.some((group) => group.groupId === topic);
  await consumer.commitOffsets([{ topic, partition: 0, offset: '4' }]);
  await consumer.disconnect();
  seen.bounds = (await admin.fetchTopicOffsets(topic))[0];
  seen.byTime = (await admin.fetchTopicOffsetsByTimestamp(topic, 1))[0].offset;
  seen.committed = (await admin.fetchOffsets({ groupId: topic, topics: [topic] }))[0].partitions[0].offset;
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  console.log(JSON.stringify(seen));
})().catch((error) => { console.error(error); process.exit(1); });
