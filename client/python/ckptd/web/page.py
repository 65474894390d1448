"""The page: one of all runs, and one of each run."""

from typing import Any, List, Optional, Tuple

from ckptd._wire.protocol import level_name, messages, types
from ckptd.web import advice
from ckptd.web.facts import Facts
from ckptd.web.plots import Point, plot
from ckptd.web.style import STYLE
from ckptd.web.text import at, counted, escaped, in_bytes, in_seconds, unix

REFRESH_SECONDS = 10
_SAVE, _RESTORE = messages.HistoryEntry.SAVE, messages.HistoryEntry.RESTORE
_ROWS = 100


def overview(facts: Facts, now: float) -> str:
    """All runs, the pool, the nodes."""
    found = advice.problems(facts.status, now)
    body = [_head(facts.status, found, now), _attention(found)]
    body.append(_pool(facts.status))
    if not facts.status.runs:
        body.append("<p>No run yet: a job appears here when it connects.</p>")
    for run in sorted(facts.status.runs, key=lambda run: _rank_of(run, now)):
        body.append(_run(run, facts, now, whole=False))
    if facts.status.HasField("cluster"):
        body.append(_cluster(facts.status.cluster, now))
    return document(f"ckptd: {advice.summary(found)}", "".join(body))


def _rank_of(run: Any, now: float) -> Tuple[int, float]:
    """Runs with problems come first, then those that save, then those that saved last."""
    place = 0 if any(problem.urgent for problem in advice.of_run(run, now)) else 1 if run.in_flight else 2
    return place, -unix(run.latest.commit_time) if run.HasField("latest") else 0.0


def run_page(facts: Facts, name: str, now: float) -> Optional[str]:
    """One run, with its whole history. None: there is no such run."""
    for run in facts.status.runs:
        if run.name == name:
            back = '<p><a href="/">All runs</a></p>'
            found = sorted(advice.of_run(run, now), key=lambda problem: not problem.urgent)
            return document(f"ckptd: {run.path}", back + _attention(found) + _run(run, facts, now, whole=True))
    return None


def no_daemon(endpoint: str, why: str) -> str:
    body = (
        '<header class="bad"><h1>No daemon answers</h1></header><section><p>'
        f"{escaped(why)}</p><p>This page asks <code>{escaped(endpoint)}</code>. Is the daemon running "
        "(<code>systemctl status ckptd</code>), and may this user connect to its socket? Jobs cannot save until it "
        "runs; this page looks again by itself.</p></section>"
    )
    return document("ckptd: no daemon answers", body)


def document(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><title>{escaped(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _head(status: Any, found: List[advice.Problem], now: float) -> str:
    bad = any(problem.urgent for problem in found)
    age = in_seconds(now - unix(status.start_time))
    return (
        f'<header class="{"bad" if bad else "good"}"><h1>{escaped(advice.summary(found))}</h1>'
        f"<p>ckptd {escaped(status.daemon_version)}, {escaped(status.state)} for {age}, "
        f"{counted(status.sessions, 'session')}, {counted(len(status.runs), 'run')}. {escaped(at(now))}</p></header>"
    )


def _attention(found: List[advice.Problem]) -> str:
    if not found:
        return ""
    items = "".join(
        f'<li class="{"bad" if problem.urgent else "remark"}">{escaped(problem.what)}'
        f'<span class="step">{_step(problem.next_step)}</span></li>'
        for problem in found
    )
    return f"<section><h2>What to look at</h2><ul>{items}</ul></section>"


def _step(words: str) -> str:
    return f"<code>{escaped(words)}</code>" if words.startswith("ckptctl ") else escaped(words)


def _pool(status: Any) -> str:
    pool = status.pool
    parts = (
        ("used", pool.used_bytes, "saves in flight"),
        ("copies", pool.resident_bytes, "copies of checkpoints"),
        ("lent", pool.lent_bytes, "lent and idle"),
        ("ready", pool.ready_bytes, "ready"),
    )
    left, bars, legend = 0.0, [], []
    for kind, size, words in parts:
        width = 100 * size / pool.total_bytes if pool.total_bytes else 0.0
        bars.append(f'<rect class="{kind}" x="{left:.2f}" width="{width:.2f}" height="6"/>')
        legend.append(f'<li><i class="{kind}"></i>{in_bytes(size)} {words}</li>')
        left += width
    return (
        f"<section><h2>Pool</h2><p>{in_bytes(pool.total_bytes)} of memory</p>"
        f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{"".join(bars)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul></section>'
    )


def _run(run: Any, facts: Facts, now: float, whole: bool) -> str:
    link = f'<a href="/{escaped(run.name)}">{escaped(run.path)}</a>' if not whole else escaped(run.path)
    parts = [f"<section><h2>{link}</h2>", _run_facts(run, facts.advice.get(run.name, ""), now)]
    parts += [_save_in_flight(save, now) for save in run.in_flight]
    entries = facts.histories.get(run.name, [])
    if run.name in facts.history_errors:
        parts.append(f'<p class="bad">Its history cannot be read: {escaped(facts.history_errors[run.name])}</p>')
    parts.append(_plots(entries, whole))
    if whole:
        parts.append(_history(entries))
    return "".join(parts) + "</section>"


def _run_facts(run: Any, interval: str, now: float) -> str:
    rows = []
    job, machine = advice.loss_of_job(run, now), advice.loss_of_machine(run, now)
    rows.append(("If the job died now, it", job.words()))
    if machine != job:
        rows.append(("If the machine died now, it", machine.words()))
    if run.HasField("latest"):
        latest = run.latest
        step = f"step {latest.step}, " if latest.HasField("step") else ""
        rows.append(("Latest", f"{latest.tag} ({step}{in_bytes(latest.size_bytes)})"))
        rows.append(("Committed", f"{in_seconds(now - unix(latest.commit_time))} ago"))
    if not run.HasField("probe"):
        rows.append(("Checkpoints", "not read yet"))
    else:
        checkpoints = counted(run.checkpoint_count, "checkpoint")
        victims = f", next to go: {', '.join(run.predicted_victims)}" if run.predicted_victims else ""
        rows.append(("Kept", checkpoints + victims))
        probe = run.probe
        rows.append(
            ("Disk", f"{in_bytes(probe.free_bytes)} free, {probe.file_system}, {probe.io_backend or 'not probed'}")
        )
    if interval:
        rows.append(("Advice", interval))
    if run.trash_bytes:
        rows.append(("Trash", in_bytes(run.trash_bytes)))
    rows.append(("Owner", f"uid {run.uid}, attempt {run.attempt}, {counted(run.world_size, 'rank')}"))
    return "<dl>" + "".join(f"<div><dt>{escaped(k)}</dt><dd>{escaped(v)}</dd></div>" for k, v in rows) + "</dl>"


def _save_in_flight(save: Any, now: float) -> str:
    done = save.written_bytes / save.size_bytes if save.size_bytes else 0.0
    waits = f", waits for ranks {', '.join(map(str, save.missing_ranks))}" if save.missing_ranks else ""
    words = (
        f"Saving {save.tag}: {level_name(save.level)}, {in_bytes(save.written_bytes)} of "
        f"{in_bytes(save.size_bytes)} written, for {in_seconds(now - unix(save.create_time))}{waits}"
    )
    return f'<p class="flight">{escaped(words)}<progress max="1" value="{done:.4f}">{done:.0%}</progress></p>'


def _title(entry: Any) -> str:
    end = level_name(entry.level) if entry.kind == _SAVE else "read"
    reason = f": {entry.reason}: {entry.message}" if entry.reason else ""
    return f"{entry.tag}, {at(unix(entry.time))}, {end}{reason}"


def _plots(entries: List[Any], whole: bool) -> str:
    saves = [entry for entry in reversed(entries) if entry.kind == _SAVE]
    restores = [entry for entry in reversed(entries) if entry.kind == _RESTORE]

    def points(value: Any) -> List[Point]:
        return [
            Point(unix(save.time), value(save) if save.level == types.COMMITTED else None, _title(save)) for save in saves
        ]

    drawn = plot("Stall of training", points(lambda save: save.stall_seconds), in_seconds)
    drawn += plot("Durable after", points(lambda save: save.committed_seconds), in_seconds)
    if whole:
        drawn += plot("Size", points(lambda save: save.size_bytes), in_bytes, 1024)
        drawn += plot("Rate to disk", points(_rate), lambda rate: f"{in_bytes(rate)}/s", 1024)
        read = [Point(unix(each.time), None if each.reason else each.staged_seconds, _title(each)) for each in restores]
        drawn += plot("Time of restores", read, in_seconds)
    return f'<div class="plots">{drawn}</div>' if drawn else ""


def _rate(save: Any) -> Optional[float]:
    return save.size_bytes / save.written_seconds if save.written_seconds > 0 else 0.0


def _history(entries: List[Any]) -> str:
    if not entries:
        return "<p>Nothing has happened yet.</p>"
    rows = []
    for entry in entries[:_ROWS]:
        kind = messages.HistoryEntry.Kind.Name(entry.kind).lower()
        failed = bool(entry.reason) and not (entry.kind == _SAVE and entry.level in (types.SKIPPED, types.SUPERSEDED))
        end = level_name(entry.level) if entry.kind == _SAVE else ""
        words = ": ".join(word for word in (end, entry.reason, entry.message) if word)
        times = (entry.stall_seconds, entry.staged_seconds, entry.written_seconds, entry.committed_seconds)
        cells = [
            at(unix(entry.time)),
            kind,
            entry.tag,
            entry.step if entry.HasField("step") else "",
            in_bytes(entry.size_bytes),
            *(in_seconds(time) if time > 0 else "" for time in times),
            entry.slowest_rank if entry.HasField("slowest_rank") else "",
            words,
        ]
        row = "".join(f"<td>{escaped(cell)}</td>" for cell in cells)
        rows.append(f'<tr class="bad">{row}</tr>' if failed else f"<tr>{row}</tr>")
    names = "When,What,Tag,Step,Size,Stall,Copied,Written,Published,Slowest rank,Outcome".split(",")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f'<h3>History</h3><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cluster(cluster: Any, now: float) -> str:
    coordinators = {run.root: run for run in cluster.shared_runs}
    nodes = "".join(
        f"<tr><td>{escaped(node.name)}</td><td>{escaped(node.host)}</td><td>{escaped(node.daemon_version)}</td>"
        f"<td>{in_seconds(now - unix(node.register_time))}</td></tr>"
        for node in cluster.nodes
    )
    members = "".join(
        f'<li class="{"" if member.answers else "bad" if member.HasField("answers") else "remark"}">'
        f"{escaped(member.endpoint)} "
        f"{'answers' if member.answers else 'does not answer' if member.HasField('answers') else 'was not asked'}</li>"
        for member in cluster.etcd_members
    )
    shared = "".join(
        f"<tr><td>{escaped(root)}</td><td>{escaped(run.coordinator or 'none')}</td><td>"
        f"{escaped('; '.join(f'{save.tag} waits for {save.waits_for}' for save in run.saves))}</td></tr>"
        for root, run in sorted(coordinators.items())
    )
    return (
        f"<section><h2>Nodes</h2><p>This is {escaped(cluster.node)}.</p>"
        '<div class="wide"><table><thead><tr><th scope="col">Node</th><th scope="col">Host</th>'
        f'<th scope="col">Version</th><th scope="col">Registered for</th></tr></thead><tbody>{nodes}</tbody></table></div>'
        f"<h3>etcd</h3><ul>{members}</ul>"
        '<h3>Shared runs</h3><div class="wide"><table><thead><tr><th scope="col">Root</th>'
        '<th scope="col">Coordinator</th><th scope="col">Saves</th></tr></thead>'
        f"<tbody>{shared}</tbody></table></div></section>"
    )
