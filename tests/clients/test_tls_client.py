"""The official ``openai`` client over TLS, with and without a certificate of its own."""

from __future__ import annotations

import ssl

import httpx2
import openai
import pytest

from tests.mock_server import ROOT, MockServer

DATA = ROOT / "rust" / "server" / "tests" / "data" / "tls"
FILES = ("--ssl-certfile", str(DATA / "server.pem"), "--ssl-keyfile", str(DATA / "server.key"))
MESSAGES = [{"role": "user", "content": "Say something, please."}]


def trusting(certificate: str | None = None) -> ssl.SSLContext:
    """A client's side that trusts the test authority, with the certificate of this name."""
    context = ssl.create_default_context(cafile=DATA / "authority.pem")
    if certificate is not None:
        context.load_cert_chain(DATA / f"{certificate}.pem", DATA / f"{certificate}.key")
    return context


def connect(server: MockServer, context: ssl.SSLContext) -> openai.OpenAI:
    client = httpx2.Client(verify=context)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=client)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_stream_over_tls_adds_up_to_the_whole_answer(version: ssl.TLSVersion) -> None:
    context = trusting()
    context.minimum_version = context.maximum_version = version
    asked = {"model": "mock", "messages": MESSAGES, "max_tokens": 120, "seed": 3}
    with (
        MockServer(*FILES, "--served-model-name", "mock", "--say", "anything", tls=trusting()) as server,
        connect(server, context) as client,
    ):
        assert server.url.startswith("https://")
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_a_client_needs_the_certificate_that_the_server_asks_for() -> None:
    asking = ("--ssl-ca-certs", str(DATA / "authority.pem"), "--ssl-cert-reqs", "2")
    known = trusting("client")
    with MockServer(*FILES, *asking, "--served-model-name", "mock", tls=known) as server:
        with connect(server, known) as client:
            assert [model.id for model in client.models.list()] == ["mock"]
        for context in (trusting(), trusting("stranger")):
            with connect(server, context) as client, pytest.raises(openai.APIConnectionError):
                client.models.list()
        # A client that does not trust the authority is not fooled either.
        with (
            connect(server, ssl.create_default_context()) as client,
            pytest.raises(openai.APIConnectionError),
        ):
            client.models.list()


def test_a_server_does_not_start_with_a_key_of_another_certificate() -> None:
    server = MockServer("--ssl-certfile", str(DATA / "server.pem"), "--ssl-keyfile", str(DATA / "client.key"))
    assert server.process.wait(20) == 1
    server.__exit__()
    assert "client.key is not that of the certificate in" in "".join(server.log)
