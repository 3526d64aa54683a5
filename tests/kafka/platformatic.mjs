// Creates a topic, produces, consumes in a group and deletes; prints what it saw as JSON.
import { createRequire } from 'node:module';

const [, , broker, topic, modules] = process.argv;
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } =
  createRequire(`${modules}/`)('@platformatic/kafka');
const server = { clientId: 'test', bootstrapBrokers: [broker] };
const seen = {};

const admin = new Admin(server);
const [made] = await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 });
seen.created = [made.name, made.partitions];

const producer = new Producer({ ...server, serializers: stringSerializers });
for (let n = 0; n < 10; n += 1) {
  await producer.send({ messages: [{ topic, key: `k${n}`, value: `v${n}` }] });
}
await producer.close();

const consumer = new Consumer({
  ...server, groupId: topic, autocommit: true, deserializers: stringDeserializers,
});
const stream = await consumer.consume({ topics: [topic], mode: 'earliest', maxWaitTime: 500 });
const values = [];
for await (const message of stream) {
  values.push(message.value);
  if (values.length === 10) break;
}
seen.values = values.sort();
await consumer.close(true);

await admin.deleteTopics({ topics: [topic] });
seen.left = (await admin.listTopics()).includes(topic);
await admin.close();
console.log(JSON.stringify(seen));
process.exit(0);
