"""Pages for probes and load balancers, and a real Prometheus that scrapes a real cluster."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.integration.broker_process import (
    PROGRAM,
    BrokerProcess,
    free_port,
    get,
    remove_journals,
    running_broker,
    wait_until,
)
from tests.integration.certificates import certificate
from tests.integration.cluster_process import Cluster, Row, running_cluster
from tests.integration.test_cluster import commit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LIMIT_S = 120.0
DOCS = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
SCRAPE = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
  - job_name: understudy
    static_configs: [{{targets: [{targets}]}}]
"""


def program(name: str) -> str:
    """The path of a program of Debian's package prometheus."""
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed. On Debian and Ubuntu: apt-get install prometheus"
    return path


def metrics(port: int, path: str = "/metrics") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        assert (response.status, response.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        return body
    finally:
        connection.close()


def value(text: str, series: str) -> float:
    """Of one series, named as it stands in the page."""
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == series]
    assert len(found) == 1, f"{series}: {found}"
    return float(found[0])


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str], ca: Path | None = None) -> Iterator[int]:
    """A Prometheus server that scrapes ``targets``, over TLS with a ``ca``; its port."""
    folder.mkdir()
    config = folder / "prometheus.yml"
    tls = f"    scheme: https\n    tls_config: {{ca_file: '{ca}'}}\n" if ca is not None else ""
    config.write_text(
        SCRAPE.format(rules=DOCS / "rules.yml", targets=", ".join(f"'{target}'" for target in targets)) + tls,
        encoding="utf-8",
    )
    port = free_port()
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
        shutil.rmtree(folder / "tsdb", ignore_errors=True)


def api(port: int, path: str) -> dict[str, Any]:
    """The answer of Prometheus; empty while the server begins."""
    try:
        status, answer = get(port, f"/api/v1/{path}")
    except ValueError:  # 503 as plain text
        return {}
    return answer["data"] if status == 200 else {}


def query(port: int, asked: str) -> list[dict[str, Any]]:
    """The vector that a query gives."""
    vector: list[dict[str, Any]] = api(port, f"query?query={quote(asked)}").get("result", [])
    return vector


def rule_states(port: int) -> dict[str, tuple[str, str]]:
    """(health, state) of each alert."""
    groups = api(port, "rules").get("groups", [])
    return {rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"]}


def _answers_yes(port: int, path: str) -> bool:
    return get(port, path)[0] == 200


def places(rows: dict[str, Row]) -> list[str]:
    return [f"127.0.0.1:{row['ports']['http']}" for row in rows.values()]


@contextlib.contextmanager
def cluster_with_commits(folder: Path, *options: str) -> Iterator[Cluster]:
    with running_cluster(folder, *options) as running:
        for number in range(3):
            commit(running, number)
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_with_commits(tmp_path_factory.mktemp("monitored")) as running:
        yield running


def test_prometheus_scrapes_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    rows = cluster.ready()
    with prometheus(tmp_path / "prometheus", places(rows)) as port:
        wait_until("every broker is up", lambda: len(query(port, 'up{job="understudy"} == 1')) == 3, LIMIT_S)
        leading = wait_until("one leads", lambda: query(port, 'understudy_ha_role{role="primary"} == 1'), LIMIT_S)
        primary = cluster.primary()
        assert [each["metric"]["instance"] for each in leading] == [f"127.0.0.1:{primary['ports']['http']}"]
        for number in range(3):  # the primary of now may have counted none of those at the start
            commit(cluster, number)
        wait_until("commits are counted", lambda: query(port, "sum(understudy_tx_commits_total) >= 3"), LIMIT_S)
        [timed] = query(port, "understudy_tx_commit_seconds_count > 0")
        assert timed["metric"]["instance"] == f"127.0.0.1:{primary['ports']['http']}"
        lags = query(port, "understudy_ha_backup_lag_records")
        assert {each["metric"]["backup"] for each in lags} == set(rows) - {primary["broker"]}
        # One may be pending before the first scrape of every broker.
        wait_until("no rule fires", lambda: set(rule_states(port).values()) == {("ok", "inactive")}, LIMIT_S)


def test_every_metric_that_is_named_is_there(tmp_path: Path, kafka: str) -> None:
    """Of a group with an outlet. It is the only one of its name in this Kafka: another would find the position of this one."""
    with cluster_with_commits(tmp_path, "--kafka", kafka, "--outlet", "monitored.{queue}") as cluster:
        _look_at_metrics(cluster)


def _look_at_metrics(cluster: Cluster) -> None:
    ports = [row["ports"]["http"] for row in cluster.ready().values()]
    commit(cluster, 4)  # an outlet counts what it has sent itself, and another broker may lead by now
    wait_until("the outlet has sent all", lambda: _sent(metrics(cluster.primary()["ports"]["http"])), 300)
    texts = [metrics(port, "/metrics?per_queue=1") for port in ports]
    there = {re.split(r"[{ ]", line)[0] for text in texts for line in text.splitlines()}
    for text in texts:  # of the text's form; and what Prometheus users expect of names
        done = subprocess.run(
            [program("promtool"), "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
    dashboard = json.loads((DOCS / "dashboard.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(shown) >= len(dashboard["panels"]) > 10
    families = {line.split()[2] for text in texts for line in text.splitlines() if line.startswith("# TYPE")}
    rules = (DOCS / "rules.yml").read_text(encoding="utf-8")
    for source, known in ((rules, there), ("\n".join(shown), there), (_expanded("README.md"), families)):
        named = set(re.findall(r"(?:understudy|process)_[a-z_]+[a-z]", source))
        assert named, "there are names in it"
        assert named <= known, named - known
    exposed = {name for name in there if name.startswith("understudy_ha_backup_")}
    for port, text in zip(ports, texts, strict=True):
        is_primary = get(port, "/primary")[0] == 200
        assert all((name in text) is is_primary for name in exposed)


def _sent(text: str) -> bool:
    """True if this broker's outlet has sent something, and owes nothing."""
    return (
        re.search("^understudy_outlet_transactions_total [1-9]", text, re.MULTILINE) is not None
        and "understudy_outlet_lag_transactions 0.0" in text
        and 'understudy_outlet_state{state="sending"} 1.0' in text
    )


def _expanded(name: str) -> str:
    """Of a page in which `a_{b,c}` stands for `a_b` and `a_c`; in `a{b}` it is a label."""
    text = (DOCS / name).read_text(encoding="utf-8")
    whole = re.compile(r"(understudy_(?:[a-z_]+_)?)\{([a-z_,]+)\}([a-z_]*)")
    return whole.sub(lambda found: " ".join(f"{found[1]}{each}{found[3]}" for each in found[2].split(",")), text)


@pytest.mark.parametrize("check", ["check rules rules.yml", "check config prometheus.yml", "test rules rules_test.yml"])
def test_promtool_takes_the_files(check: str) -> None:
    """Alerts fire when they should, and not in a failover of seconds."""
    command = [program("promtool"), *check.split()]
    done = subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_say_who_may_be_used_for_what(cluster: Cluster) -> None:
    rows = cluster.ready()
    primary = cluster.primary()["broker"]
    for broker, row in rows.items():
        port = row["ports"]["http"]
        leads = broker == primary
        assert [get(port, path)[0] for path in ("/livez", "/readyz", "/primary", "/backup", "/promotable")] == [
            200,
            200 if leads else 503,
            200 if leads else 503,
            503 if leads else 200,
            503 if leads else 200,
        ]
        refused = f"{broker} is a backup; primary is amqp://127.0.0.1:{rows[primary]['port']}"
        for path in ("/readyz", "/primary"):
            assert get(port, path)[1]["blockers"] == ([] if leads else [refused])
        assert get(port, "/backup")[1]["blockers"] == ([f"{broker} is the primary"] if leads else [])
        promotable = get(port, "/promotable")[1]
        assert [each["kind"] for each in promotable["blockers"]] == (["leads"] if leads else [])
        assert get(port, "/readyz")[1]["primary"] == primary
        if not leads:
            wait_until("the backup has applied all", partial(_answers_yes, port, "/backup?lag=0"))
        assert get(port, "/backup?lag=-1")[0] == get(port, "/promotable?lag=1")[0] == 400


def test_a_broker_alone_counts_what_its_clients_do(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        for name in ("a", "b \N{SNOWMAN}"):
            channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        for _ in range(5):
            channel.basic_publish("", "a", b"x", mandatory=True)
        other = connection.channel()
        for _ in range(2):
            other.basic_get("a")
        connection.process_data_events(0)
        port = broker.ports["http"]
        text = metrics(port)
        assert value(text, "understudy_ready") == 1
        assert value(text, "understudy_messages_published_total") == 5
        assert value(text, "understudy_messages_confirmed_total") == 5
        assert value(text, "understudy_messages_delivered_total") == 2
        assert (value(text, "understudy_connections"), value(text, "understudy_channels")) == (1, 2)
        assert value(text, "understudy_queue_messages_ready") == 3
        assert value(text, "understudy_queue_messages_unacked") == 2
        assert value(text, "understudy_journal_fsync_seconds_count") > 0
        assert "understudy_detailed" not in text
        detailed = metrics(port, "/metrics?per_queue=1")
        assert value(detailed, 'understudy_detailed_queue_messages_ready{queue="a",vhost="/"}') == 3
        assert value(detailed, 'understudy_detailed_queue_messages_ready{queue="b \N{SNOWMAN}",vhost="/"}') == 0
        assert get(port, "/metrics?per_queue=2")[0] == 400
        other.close()
        assert value(metrics(port), "understudy_messages_delivered_total") == 2
        connection.close()


def test_the_http_port_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find it by the directory; by its URL they and Prometheus want a certificate that they trust."""
    cert, key = certificate(tmp_path)
    broker = BrokerProcess(tmp_path, f'[http.tls]\ncert = "{cert}"\nkey = "{key}"\n')
    try:
        broker.spawn()
        wait_until("the broker serves", lambda: "serving" in broker.log_text())
        url = f"https://localhost:{broker.ports['http']}"
        assert _status("--data", str(broker.data))["brokers"][0]["status"] == "standalone"
        monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
        with pytest.raises(AssertionError, match="no broker answers at https://localhost"):
            _status("--url", url)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert _status("--url", url)["brokers"][0]["status"] == "standalone"
        with prometheus(tmp_path / "prometheus", [url.removeprefix("https://")], cert) as port:
            wait_until("it is scraped", lambda: query(port, "understudy_ready == 1"), LIMIT_S)
        assert broker.stop() == 0, broker.log_text()
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        remove_journals(tmp_path)


def _status(*options: str) -> dict[str, Any]:
    done = subprocess.run([PROGRAM, "status", "--json", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_pages_belong_to_the_process_and_not_to_its_role(cluster: Cluster) -> None:
    """A primary that is stopped for long steps down when it goes on: a new core, the same process and port."""
    cluster.ready()
    before = cluster.primary()
    port = before["ports"]["http"]
    cores = value(metrics(port), "understudy_cores_total")
    os.kill(before["pid"], signal.SIGSTOP)
    try:
        after = wait_until("another broker leads", lambda: _leads_now(cluster, before["broker"]), LIMIT_S)
    finally:
        os.kill(before["pid"], signal.SIGCONT)
    assert get(after["ports"]["http"], "/primary")[0] == 200
    assert value(metrics(after["ports"]["http"]), "understudy_ha_group_epoch") == after["epoch"] > before["epoch"]
    wait_until("the former primary may be promoted", partial(_answers_yes, port, "/promotable"), LIMIT_S)
    text = metrics(port)
    assert value(text, 'understudy_ha_role{role="backup"}') == 1
    assert value(text, "understudy_cores_total") > cores
    assert get(port, "/primary")[0] == get(port, "/readyz")[0] == 503
    assert cluster.rows()[before["broker"]]["pid"] == before["pid"]


def _leads_now(cluster: Cluster, former: str) -> Row | None:
    rows = cluster.rows().values()
    return next((row for row in rows if row["status"] == "active" and row["broker"] != former), None)
