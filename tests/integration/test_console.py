"""The console against a real broker: every screen, with names, tags, properties and bodies that
mean harm, and with users that may look and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from mq.client import Admin, Consumer, Message, Producer
from tests.support.broker_process import BrokerProcess
from tests.support.console import Console, console_of
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{7*7}}&amp;"
# What a page must never hold as it stands.
HARM = re.compile(r"<script>alert|<img src=x|onerror=alert\(2\)>|\b49&amp;amp;")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("console") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def stored(broker: BrokerProcess) -> list[str]:
    """Messages of `orders`; the ids in the order of sending. The last one means harm."""
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", queues=3)
        messages = [
            Message(
                json.dumps({"order": number}).encode(),
                tag="paid" if number % 2 else "open",
                keys=[f"order-{number}"],
                properties={"amount": str(number)},
            )
            for number in range(120)
        ]
        sent = [producer.send("orders", one).message_id for one in messages]
        harm = Message(
            HOSTILE.encode(),
            tag=HOSTILE.replace(" ", ""),
            keys=[HOSTILE],
            properties={"note": HOSTILE, HOSTILE.replace("=", ""): "x"},
            ordering_key=HOSTILE,
        )
        sent.append(producer.send("orders", harm).message_id)
        with Consumer(broker.address, "billing", "orders", start="earliest") as consumer:
            seen = 0
            while seen < 100:
                seen += len(consumer.poll(max_messages=100 - seen, timeout_s=10))
            consumer.commit()
    return sent


@pytest.fixture(scope="module")
def console(broker: BrokerProcess, stored: list[str]) -> Iterator[Console]:
    with console_of(broker.address) as client:
        assert stored
        poll(lambda: "orders" in client.get("/topics").text, "the topic is sampled")
        yield client


def order_numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r'"order": (\d+)}', unescape(text))]


def test_every_screen_escapes_what_users_and_messages_say(
    console: Console, stored: list[str]
) -> None:
    harm = quote(stored[-1], safe="")
    said = quote(HOSTILE, safe="")
    pages = [
        "/",
        "/topics",
        f"/topics?q={said}",
        f"/topics?sort={said}",
        "/topics/orders",
        f"/topics/{said}",
        "/messages",
        "/messages?topic=orders",
        f"/messages?topic=orders&text={said}",
        f"/messages?topic=orders&tag={said}",
        f"/messages?topic=orders&sql={said}",
        f"/messages?topic=orders&key={said}",
        f"/messages?topic=orders&from=time&time={said}",
        f"/messages?topic=orders&queue={said}",
        f"/messages?topic=orders&from=group&group={said}",
        f"/messages?topic=orders&live=1&text={said}",
        f"/messages?topic={said}",
        f"/messages?from={said}",
        f"/messages?id={said}",
        f"/messages/{harm}",
        f"/messages/{harm}?as=text",
        f"/messages/{harm}?as=hex",
        f"/messages/{harm}?as={said}",
        f"/messages/{said}",
        f"/send?from={harm}",
        f"/send?topic={said}",
        f"/login?next={said}",
        f"/nothing/{said}",
    ]
    for page in pages:
        answer = console.get(page)
        assert answer.status_code < 500, page
        assert not HARM.search(answer.text), page
        assert " style=" not in answer.text, page
        assert not re.search(r"<script(?! src=\"/static/)", answer.text), page
    answer = console.send_form("/send", topic=HOSTILE, body=HOSTILE, tag=HOSTILE, keys=HOSTILE)
    assert answer.status_code == 400
    assert not HARM.search(answer.text)
    # It was there, and is shown as what it is.
    assert HOSTILE in unescape(console.get(f"/messages/{harm}?as=text").text)


def test_no_template_turns_escaping_off() -> None:
    folder = Path(__file__).resolve().parents[2] / "mq" / "console" / "templates"
    found = sorted(folder.glob("*.html"))
    assert len(found) > 5
    for path in found:
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), path.name
        # An attribute without quotes could be left by a value.
        tags = re.findall(r"<[a-z][^<>]*>", text)
        assert not any(re.search(r"\s[a-z-]+={{", one) for one in tags), path.name


def test_pages_of_messages_go_back_to_the_first_one(console: Console) -> None:
    seen: list[int] = []
    path = "/messages?topic=orders"
    for _ in range(10):
        text = console.get(path).text
        seen += order_numbers(text)
        following = re.search(r'rel="next" href="([^"]+)"', text)
        if following is None:
            break
        path = unescape(following[1])
    # Of the same millisecond, any order is right.
    assert sorted(seen) == list(range(120))
    assert all(abs(at - number) < 30 for at, number in enumerate(reversed(seen)))


def test_places_and_filters(console: Console) -> None:
    def numbers(query: str) -> list[int]:
        return order_numbers(console.get(f"/messages?topic=orders&{query}").text)

    assert numbers("from=oldest")[:3] == [0, 1, 2]
    assert len(numbers("from=group&group=billing")) == 20
    assert set(numbers("tag=paid")) <= set(range(1, 120, 2))
    assert numbers("sql=amount+%3E+117") == [119, 118]
    assert numbers("text=ORDER-77") == [77]
    assert numbers("key=order-5") == [5]
    assert numbers("from=time&time=-1d")[:2] == [0, 1]
    assert numbers("from=time&time=2000-01-01T00:00:00")[:2] == [0, 1]
    first = numbers("from=offset&offset=3&queue=set-0/1")
    assert first == sorted(first)
    assert first
    for wrong in ("sql=%29", "tag=a&sql=b", "from=offset&offset=x", "from=nowhere", "queue=x/y"):
        answer = console.get(f"/messages?topic=orders&{wrong}")
        assert answer.status_code == 400, wrong
    assert console.get("/messages?topic=orders&queue=set-0/77").status_code == 404
    assert console.get("/messages?topic=missing").status_code == 404


def test_a_message_is_shown_sent_again_and_edited(console: Console, stored: list[str]) -> None:
    here = f"/messages/{quote(stored[7], safe='')}"
    text = unescape(console.get(here).text)
    assert '"order": 7' in text
    assert "amount" in text
    body = console.get(f"{here}/body")
    assert body.content == b'{"order": 7}'
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"].startswith("attachment")
    again = console.send_form(f"{here}/resend", here)
    assert again.status_code == 303
    copy = unescape(console.get(again.headers["location"]).text)
    assert "order-7" in copy
    assert "The message was sent" in copy
    form = unescape(console.get(f"/send?from={quote(stored[7], safe='')}").text)
    assert '{"order": 7}</textarea>' in form
    sent = console.send_form(
        "/send",
        topic="edited",
        body="one\r\ntwo",
        encoding="text",
        tag="new",
        keys="a\r\nb",
        properties="region=EU\r\nempty=",
    )
    assert sent.status_code == 200, sent.text
    found = re.search(r'Stored as <a href="([^"]+)"', sent.text)
    assert found is not None
    assert console.get(f"{found[1]}/body").content == b"one\ntwo"
    page = unescape(console.get(found[1]).text)
    assert "region" in page
    binary = console.send_form("/send", topic="edited", body="/wD+", encoding="base64")
    found = re.search(r'Stored as <a href="([^"]+)"', binary.text)
    assert found is not None
    assert console.get(f"{found[1]}/body").content == b"\xff\x00\xfe"
    assert "ff 00 fe" in console.get(found[1]).text
    for wrong in ({"properties": "x"}, {"delay": "soon"}, {"topic": "no/name"}):
        fields = {"topic": "edited", "body": "x", **wrong}
        assert console.send_form("/send", **fields).status_code == 400


def test_the_download_is_what_produce_reads(console: Console) -> None:
    answer = console.get("/messages.jsonl?topic=orders&from=oldest&tag=paid")
    documents = [json.loads(line) for line in answer.text.splitlines()]
    numbers = [json.loads(one["body"])["order"] for one in documents]
    assert sorted(set(numbers)) == list(range(1, 120, 2))
    assert documents[0]["keys"] == ["order-1"]
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.jsonl"'
    assert console.get("/messages.jsonl").status_code == 400


def test_topics_are_created_described_and_deleted(console: Console) -> None:
    page = "/topics"
    made = console.send_form(page, page, topic="made-here", queues="5", type="ordered")
    assert made.headers["location"] == "/topics/made-here?notice=created"
    text = console.get(made.headers["location"]).text
    assert "ordered" in text
    assert "The topic was created." in text
    assert console.send_form(page, page, topic="made-here", type="normal").status_code == 409
    assert console.send_form(page, page, topic="x", queues="-1", type="normal").status_code == 400
    assert console.send_form(page, page, topic="x", type="odd").status_code == 400
    here = "/topics/made-here"
    refused = console.send_form(f"{here}/delete", here, confirmed="made")
    assert refused.status_code == 400
    assert console.send_form(f"{here}/delete", here, confirmed="made-here").status_code == 303
    assert console.get(here).status_code == 404


def test_a_topic_tells_the_time_span_of_its_queues_and_its_groups(console: Console) -> None:
    text = console.get("/topics/orders").text
    assert len(re.findall(r"<time ", text)) >= 8
    assert "billing" in text
    document = console.get("/topics/orders/series.json").json()
    assert {one["label"] for one in document["series"]} == {"messages", "bytes"}
    assert all(len(one["values"]) == len(document["times"]) for one in document["series"])


def test_lists_cost_brokers_nothing_however_long_they_are(broker: BrokerProcess) -> None:
    """Two pages of a list of thousands are made of one sample."""
    with Admin(broker.address) as admin:
        for number in range(60):
            admin.create_topic(f"many-{number:03}", queues=1)
    with console_of(broker.address, sample_s=3600.0) as client:
        poll(lambda: "many-0" in client.get("/topics").text, "the topics are sampled")
        caller = client.app.state.callers._everybody  # type: ignore[attr-defined]
        asked = []
        channels = caller.admin._connection.channels
        original = channels.ask

        async def counted(*args: object, **values: object) -> object:
            asked.append(args)
            return await original(*args, **values)

        channels.ask = counted
        first = client.get("/topics?q=many&sort=messages").text
        second = client.get("/topics?q=many&page=2").text
        assert first.count('<th scope="row">') == 50
        assert second.count('<th scope="row">') == 10
        assert asked == []


def test_users_see_what_brokers_allow_them(tmp_path: Path) -> None:
    password = "long enough, and secret"  # noqa: S105
    with SecuredBroker(tmp_path) as broker:
        with Admin(broker.address, api_key=broker.root) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_topic("secrets", queues=2)
            admin.create_user("viewer", password=password)
            admin.add_policy("user:viewer", "allow describe,consume topic orders")
            viewers_key = admin.create_key("viewer")
        with Producer(broker.address, api_key=broker.root) as producer:
            message_id = producer.send("orders", "hello").message_id
        with console_of(broker.address) as client:
            _check_login(client, password)
            _check_viewer(client, message_id)
            key_id = viewers_key.id
            client.send_form("/logout", "/")
            assert client.get("/").status_code == 303
            assert client.sign_in(api_key=viewers_key.text).status_code == 303
            assert client.get("/topics").status_code == 200
            with Admin(broker.address, api_key=broker.root) as admin:
                admin.revoke_key(key_id)
            poll(
                lambda: client.get("/topics/orders").headers.get("location", "")[:6] == "/login",
                "the session ends with its key",
            )
            assert client.sign_in(api_key=broker.root).status_code == 303
            page = client.get("/topics/orders").text
            assert "Delete this topic" in page
            assert client.send_form("/send", topic="orders", body="x").status_code == 200


def _check_login(client: Console, password: str) -> None:
    gone = client.get("/topics?q=a%20b")
    assert gone.status_code == 303
    assert gone.headers["location"] == "/login?next=%2Ftopics%3Fq%3Da%2520b"
    assert client.get("/", headers={"hx-request": "true"}).headers["hx-redirect"] == "/login"
    assert client.sign_in(user="viewer", password="wrong and long enough").status_code == 401  # noqa: S106
    assert client.sign_in(user="viewer").status_code == 400
    assert client.sign_in(api_key="mqk_no_key").status_code == 401
    before = client.cookies["mq_session"]
    done = client.sign_in(user="viewer", password=password, next="//evil.example/")
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert client.cookies["mq_session"] != before


def _check_viewer(client: Console, message_id: str) -> None:
    here = f"/messages/{quote(message_id, safe='')}"
    poll(lambda: "orders" in client.get("/topics").text, "the viewer's topics are sampled")
    assert "secrets" not in client.get("/topics").text
    pages = ("/topics", "/topics/orders", "/messages?topic=orders", here)
    for page in pages:
        text = client.get(page).text
        for word in (
            "Create a topic",
            "Delete this topic",
            "Send again",
            "Edit and send",
            ">Send<",
        ):
            # The navigation leads to the screen, which says why it has no form.
            assert word not in text.replace('href="/send">Send<', ""), (page, word)
    assert client.get("/topics/secrets").status_code == 403
    page = "/topics/orders"
    refused = [
        client.send_form("/send", page, topic="orders", body="x"),
        client.send_form(f"{here}/resend", page),
        client.send_form("/topics", page, topic="mine", type="normal"),
        client.send_form("/topics/orders/delete", page, confirmed="orders"),
    ]
    assert [one.status_code for one in refused] == [403] * 4


def test_guessing_passwords_ends_soon(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path) as broker, console_of(broker.address) as client:
        answers = [client.sign_in(api_key="mqk_no_key").status_code for _ in range(10)]
    assert answers == [401] * 8 + [429] * 2
