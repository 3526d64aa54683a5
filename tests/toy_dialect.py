"""A toy protocol of text lines: login, get, set, publish, push, pop."""

from collections.abc import Callable

from nexo.access.login import ClientCredentials
from nexo.brokers.pubsub.message import Publication, PubSubMessage
from nexo.brokers.queue.jobs import NewJobs
from nexo.dialects.dialect import Claim, Dialect, HostPort, Speaker
from nexo.dialects.pipelined import Pending, PipelinedSession
from nexo.dialects.session import DialectState, SessionSpeaker
from nexo.errors import InvalidInput, NexoError
from nexo.model import Broker
from nexo.model.queue import ACK
from nexo.protocol.values import decode_value, encode_value, json_bytes
from nexo.services.connection import Done
from nexo.services.queue.views import LeasedJobs
from nexo.services.queue.work import JobSettlement

VERBS = dict.fromkeys((b"login", b"get", b"set"), Broker.STORE)
VERBS |= {b"publish": Broker.PUBSUB, b"push": Broker.QUEUE, b"pop": Broker.QUEUE}


class ToyDialect(Dialect):
    name, home = "toy", Broker.STORE

    def claim(self, first: bytes) -> Broker | Claim:
        verb, space, _ = first.partition(b" ")
        unsure = not space and any(known.startswith(verb) for known in VERBS)
        return Claim.MORE if unsure else VERBS.get(verb, Claim.NO)

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        return f"error {error.code} {error.message}\n".encode()

    def start(self, host: HostPort) -> Speaker:
        return SessionSpeaker(DialectState(self, host), ToySession)


class ToySession(PipelinedSession):
    def request_size(self, arrived: bytearray, at: int) -> int | None:
        end = arrived.find(b"\n", at)
        return end + 1 - at if end >= 0 else None

    def run(self, request: Pending) -> None:
        def answer(result: object) -> None:
            if isinstance(result, NexoError):
                request.refuse(result)
            elif isinstance(result, bytes):
                request.send([b"value ", json_bytes(decode_value(result)), b"\n"])
            else:
                request.send([b"ok\n"])

        words = decode_value(b"\x01" + request.data[:-1]).split(" ")  # 1 for text
        self.admit(needs_login=words[0] != "login")
        services = self._state
        match words:
            case ["login", user, password]:
                self.log_in(ClientCredentials(user, password), answer)
            case ["get", key]:
                answer(services.store.get(self, key))
            case ["set", key, value]:
                services.store.put(self, key, encode_value(value))
                answer(None)
            case ["publish", topic, value]:
                message = PubSubMessage(topic, encode_value(value), self._host.clock.now_ms())
                services.pubsub.publish(self, Publication.of([message]), answer)
            case ["push", name, value]:
                services.queues.push(self, name, NewJobs.of([encode_value(value)]), answer)
            case ["pop", name]:
                ack = self._ack_first(name, answer)
                services.queues.pop(self, request.number, name, 1, 30_000, ack)
            case _:
                raise InvalidInput("not a command")

    def _ack_first(self, name: str, answer: Callable[[object], None]) -> Done[LeasedJobs | None]:
        def popped(found: LeasedJobs | NexoError | None) -> None:
            if isinstance(found, LeasedJobs):
                jobs, [value] = [JobSettlement(found.lease.token)], found.values()
                settle = self._state.queues.settle
                settle(self, name, ACK, jobs, lambda error: answer(error or value))
            else:
                answer(found)

        return popped
