"""The gate: hosts, forms, headers. In one process, without a broker: what it refuses needs none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from mq.console import gate
from mq.console.app import make_app
from mq.console.settings import ConsoleSettings
from mq.errors import IllegalConfig

BASE = "http://127.0.0.1:8080"
# Nobody listens there.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def console() -> Iterator[TestClient]:
    settings = ConsoleSettings(NOWHERE, timeout_s=0.2)
    with TestClient(make_app(settings), base_url=BASE, follow_redirects=False) as client:
        yield client


def token_of(client: TestClient) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', client.get("/login").text)
    assert found is not None
    return found[1]


def test_every_response_forbids_scripts_frames_and_requests_of_others(console: TestClient) -> None:
    for path in ("/login", "/static/console.css", "/nothing", "/health"):
        headers = console.get(path).headers
        for name, value in gate.HEADERS.items():
            assert headers[name] == value, path
    policy = gate.POLICY
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(console: TestClient) -> None:
    cookie = console.get("/login").headers["set-cookie"]
    assert re.fullmatch(r"mq_session=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", cookie), cookie
    assert "set-cookie" not in console.get("/login").headers
    settings = ConsoleSettings(NOWHERE, public_url="https://mq.example.com")
    with TestClient(make_app(settings), base_url="https://mq.example.com") as other:
        cookie = other.get("/login").headers["set-cookie"]
    assert cookie.startswith("__Host-mq=")
    assert cookie.endswith("; Secure")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "mq.example:8080"])
def test_a_console_on_loopback_answers_to_no_other_name(console: TestClient, host: str) -> None:
    assert console.get("/login", headers={"host": host}).status_code == 421


def test_a_form_needs_its_token_and_its_origin(console: TestClient) -> None:
    token = token_of(console)
    right = {"origin": BASE}

    def post(data: dict[str, str], headers: dict[str, str]) -> int:
        return console.post("/login", data=data, headers=headers).status_code

    # It gets as far as the login itself, which wants a user.
    assert post({"form_token": token}, right) == 400
    assert post({"form_token": token}, {}) == 403
    assert post({"form_token": token}, {"origin": "null"}) == 403
    assert post({"form_token": token}, {"origin": "http://evil.example"}) == 403
    assert post({"form_token": token}, {"origin": "https://127.0.0.1:8080"}) == 403
    assert post({"form_token": token}, {**right, "sec-fetch-site": "cross-site"}) == 403
    assert post({"user": "anna"}, right) == 403
    assert post({"form_token": token[:-1]}, right) == 403
    console.cookies.clear()
    assert post({"form_token": token}, right) == 403


def test_bodies_methods_and_types_have_limits(console: TestClient) -> None:
    token = token_of(console)
    right = {"origin": BASE}
    data = {"form_token": token, "user": "x" * gate.FORM_BYTES_MAX}
    assert console.post("/login", data=data, headers=right).status_code == 413
    assert console.put("/login", headers=right).status_code == 405
    assert console.post("/login", json={}, headers=right).status_code == 415
    form = {**right, "content-type": "application/x-www-form-urlencoded"}
    assert console.post("/login", content=b"\xff=1", headers=form).status_code in (400, 403)
    many = "&".join(["a=1"] * 6_000)
    assert console.post("/login", content=many, headers=form).status_code == 400


def test_without_a_broker_a_page_says_which_one_was_asked(console: TestClient) -> None:
    answer = console.get("/topics")
    assert answer.status_code == 503
    assert NOWHERE in answer.text
    assert console.get("/health").status_code == 200


def test_a_console_takes_no_key_and_only_a_plain_public_url() -> None:
    with pytest.raises(IllegalConfig, match="no key of its own"):
        ConsoleSettings(NOWHERE, {"api_key": "mqk_a_b"})
    for url in ("ftp://a", "mq.example", "https://a/b"):
        with pytest.raises(IllegalConfig, match="public URL"):
            ConsoleSettings(NOWHERE, public_url=url)


def test_nothing_outside_of_the_static_folder_is_served(console: TestClient) -> None:
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"):
        assert console.get(path).status_code == 404
