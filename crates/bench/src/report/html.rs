//! Results as one self-contained HTML page: no script, no font and no image from elsewhere.

use std::fmt::Write;

use text::units;

use super::svg::{self, escape};
use super::{LimitLine, Trust};
use crate::compare::Verdict;
use crate::limit::Outcome;
use crate::results::{GroupResult, Results, ScenarioResult};
use crate::sample::Metric;
use crate::stats::Summary;

pub fn render(results: &Results) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Penstock benchmark</title><style>{STYLE}</style></head><body><main>\n\
         <h1>Penstock benchmark</h1><p class=\"lead\">{} &middot; <code>{}</code> &middot; {} rounds of {} s</p>\n",
        escape(&results.started),
        escape(&results.command),
        results.rounds,
        results.trial_seconds,
    );
    warnings(&mut page, results);
    contents(&mut page, results);
    page.push_str(HOW_TO_READ);
    in_short(&mut page, results);
    results.scenarios.iter().for_each(|one| scenario(&mut page, one));
    limits(&mut page, results);
    page.push_str("<section><h2 id=\"machine\">The machine</h2><table class=\"facts\">");
    for (name, value) in super::facts(results) {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(&name), escape(&value));
    }
    page.push_str("</table></section>\n<section><h2 id=\"configurations\">Configurations</h2>");
    for one in &results.scenarios {
        for (title, configuration) in super::configurations(one) {
            let (title, configuration) = (escape(&title), escape(configuration.trim_end()));
            let _ = write!(page, "<details><summary>{title}</summary><pre>{configuration}</pre></details>");
        }
    }
    page.push_str("</section></main></body></html>\n");
    page
}

fn warnings(page: &mut String, results: &Results) {
    if let Some(interruption) = super::interruption(results) {
        let _ =
            write!(page, "<p class=\"warning\"><strong>Interrupted</strong> {}.</p>", escape(&interruption));
    }
    let disturbed: Vec<_> = results.disturbed().collect();
    if disturbed.is_empty() {
        return;
    }
    let groups = units::count(disturbed.len(), "group");
    let _ = write!(
        page,
        "<details class=\"warning\"><summary><strong>This run was disturbed</strong> in {groups}.</summary><ul>"
    );
    for (scenario, group) in disturbed {
        let reason = group.disturbed.as_deref().unwrap_or_default();
        let _ =
            write!(page, "<li>{}, {}: {}</li>", escape(&scenario.name), escape(&group.title), escape(reason));
    }
    page.push_str("</ul></details>\n");
}

/// One line per group: the best contestant, and the verdict on the subject.
fn in_short(page: &mut String, results: &Results) {
    page.push_str(
        "<section><h2 id=\"short\">In short</h2><div class=\"wide\"><table class=\"short\"><thead><tr>\
         <th scope=\"col\">work</th><th scope=\"col\">verdicts</th></tr></thead><tbody>",
    );
    for scenario in &results.scenarios {
        for group in &scenario.groups {
            let (name, id, title) = (escape(&scenario.name), escape(&group.id), escape(&group.title));
            let _ =
                write!(page, "<tr><th scope=\"row\"><a href=\"#{name}-{id}\">{name}</a>: {title}</th><td>");
            let trust = Trust::of(group);
            for pair in &group.pairs {
                let comparison = &pair.comparison;
                let _ = write!(
                    page,
                    "<span class=\"chip {}\">{} / {} {:.2} &times; <b>{}</b></span> ",
                    class(comparison.verdict, trust),
                    escape(&pair.subject),
                    escape(&pair.other),
                    comparison.ratio,
                    trust.mark(comparison.verdict)
                );
            }
            page.push_str("</td></tr>");
        }
    }
    page.push_str("</tbody></table></div></section>\n");
}

/// Escapes a sentence and converts text in backticks to code elements.
fn prose(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let shown = pieces.map(|(index, piece)| match index % 2 {
        0 => escape(piece),
        _ => format!("<code>{}</code>", escape(piece)),
    });
    shown.collect()
}

/// CSS class of a verdict. Colours only repeat the words; disturbed groups have no colour.
fn class(verdict: Verdict, trust: Trust) -> &'static str {
    match (trust, verdict) {
        (Trust::Calm, Verdict::Better) => "good",
        (Trust::Calm, Verdict::Worse) => "bad",
        (Trust::Disturbed, _) | (_, Verdict::NoDifference | Verdict::TooNoisy | Verdict::TooFewRounds) => {
            "even"
        }
    }
}

fn contents(page: &mut String, results: &Results) {
    page.push_str("<nav>");
    for scenario in &results.scenarios {
        let name = escape(&scenario.name);
        let _ = write!(page, "<a href=\"#{name}\">{name}</a> ");
    }
    if results.limits().next().is_some() {
        page.push_str("<a href=\"#limits\">limits</a> ");
    }
    page.push_str("<a href=\"#machine\">machine</a> <a href=\"#configurations\">configurations</a></nav>\n");
}

fn limits(page: &mut String, results: &Results) {
    let lines = super::limits(results);
    if lines.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2 id=\"limits\">Limits</h2><div class=\"wide\"><table class=\"short\"><thead><tr>\
         <th scope=\"col\">group</th><th scope=\"col\">what</th><th scope=\"col\">limit</th>\
         <th scope=\"col\">goal</th><th scope=\"col\">measured</th><th></th></tr></thead><tbody>",
    );
    for line in lines {
        let place = escape(&line.place);
        let anchor = place.replace('/', "-");
        let _ = write!(page, "<tr><th scope=\"row\"><a href=\"#{anchor}\">{place}</a></th>");
        for cell in [&line.what, &line.limit, &line.goal, &line.measured] {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        let class = outcome_class(&line);
        let _ = write!(page, "<td><b class=\"{class}\">{}</b></td></tr>", line.verdict());
    }
    page.push_str("</tbody></table></div></section>\n");
}

fn outcome_class(line: &LimitLine) -> &'static str {
    match (line.trust, line.outcome) {
        (Trust::Calm, Outcome::GoalMet | Outcome::Met) => "good",
        (Trust::Calm, Outcome::Missed) => "bad",
        (Trust::Disturbed, _) | (_, Outcome::TooClose | Outcome::TooFewRounds | Outcome::NotMeasured) => {
            "even"
        }
    }
}

fn scenario(page: &mut String, scenario: &ScenarioResult) {
    let name = escape(&scenario.name);
    let _ = write!(page, "<section><h2 id=\"{name}\">{name}</h2><p>{}</p>", escape(&scenario.question));
    if let Some(failed) = &scenario.failed {
        let _ = write!(page, "<p class=\"warning\">Not measured: {}</p>", escape(failed));
    }
    if !scenario.notes.is_empty() || !scenario.missing.is_empty() {
        page.push_str("<ul class=\"notes\">");
        for missing in &scenario.missing {
            let (program, package) = (escape(&missing.program), escape(&missing.package));
            let _ = write!(page, "<li>Not installed: {program} (Debian package <code>{package}</code>)</li>");
        }
        for note in &scenario.notes {
            let _ = write!(page, "<li>{}</li>", prose(note));
        }
        page.push_str("</ul>");
    }
    scenario.groups.iter().for_each(|one| group(page, &scenario.name, one));
    page.push_str("</section>\n");
}

fn group(page: &mut String, scenario: &str, group: &GroupResult) {
    let id = escape(&format!("{scenario}-{}", group.id));
    let title = escape(&group.title);
    let headline = escape(&group.headline.title(&group.unit));
    let _ = write!(
        page,
        "<article id=\"{id}\"><h3>{title}</h3><p class=\"what\">{headline}</p>{}",
        svg::bars(group)
    );
    table(page, group);
    verdicts(page, group);
    let curves = svg::latencies(group);
    if !curves.is_empty() {
        let _ = write!(page, "<details><summary>Latency</summary>{curves}</details>");
    }
    page.push_str("</article>");
}

fn table(page: &mut String, group: &GroupResult) {
    let metrics: Vec<&Metric> = std::iter::once(&group.headline).chain(&group.columns).collect();
    page.push_str("<div class=\"wide\"><table><thead><tr><th></th>");
    for (index, metric) in metrics.iter().enumerate() {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(&metric.title(&group.unit)));
        if index == 0 {
            page.push_str("<th scope=\"col\">spread</th>");
        }
    }
    page.push_str("<th scope=\"col\">rounds</th></tr></thead><tbody>");
    for contestant in &group.contestants {
        let version = contestant.version.as_deref().unwrap_or_default();
        let _ = write!(
            page,
            "<tr><th scope=\"row\" title=\"{}\">{}</th>",
            escape(version),
            escape(&contestant.name)
        );
        for (index, metric) in metrics.iter().enumerate() {
            let summary = Summary::of(&contestant.values_by_round(metric));
            let value =
                summary.as_ref().map_or_else(|| "-".to_owned(), |summary| metric.show(summary.median));
            let _ = write!(page, "<td>{}</td>", escape(&value));
            if index == 0 {
                let spread = summary.map(|summary| format!("&plusmn;{:.1} %", summary.spread() * 100.0));
                let _ = write!(page, "<td>{}</td>", spread.unwrap_or_else(|| "-".to_owned()));
            }
        }
        let _ = write!(page, "<td>{}</td></tr>", contestant.samples.len());
    }
    page.push_str("</tbody></table></div>");
}

fn verdicts(page: &mut String, group: &GroupResult) {
    page.push_str("<ul class=\"verdicts\">");
    let trust = Trust::of(group);
    for pair in &group.pairs {
        let comparison = &pair.comparison;
        let interval = comparison.interval;
        let (class, verdict) = (class(comparison.verdict, trust), trust.mark(comparison.verdict));
        let _ = write!(
            page,
            "<li>{} against {}: <b class=\"{class}\">{verdict}</b> <span class=\"ratio\">{:.2} &times;</span> \
             <small>({:.2} to {:.2} with {:.0} %)</small></li>",
            escape(&pair.subject),
            escape(&pair.other),
            comparison.ratio,
            interval.low,
            interval.high,
            interval.confidence * 100.0
        );
    }
    for line in super::limits_of(group) {
        let (class, outcome) = (outcome_class(&line), line.verdict());
        let [what, limit, goal, measured] =
            [line.what, line.limit, line.goal, line.measured].map(|text| escape(&text));
        let _ = write!(
            page,
            "<li>Limit: {what}: {measured}: <b class=\"{class}\">{outcome}</b> \
             <small>(limit {limit}, goal {goal})</small></li>"
        );
    }
    for remark in super::remarks(group).iter().skip(group.pairs.len() + group.limits.len()) {
        let loud = ["DISTURBED", "FAILED", "INTERRUPTED"].iter().any(|word| remark.starts_with(word));
        let class = if loud { "bad" } else { "remark" };
        let _ = write!(page, "<li class=\"{class}\">{}</li>", escape(remark));
    }
    page.push_str("</ul>");
}

const HOW_TO_READ: &str = "<details class=\"how\"><summary>How to read this</summary><p>Every contestant has one trial \
in each round, in turns, so what disturbs the machine affects all of them. Bars are medians, dots are single rounds, the \
line is an interval that holds the true median with the probability given (exact, from order statistics). Verdicts \
come from the ratios within each round. Spread is half the distance between the quartiles, in percent of the median. The \
probability is no round number because it depends on the number of rounds: five rounds lie on both sides of the true median \
with 94 %, so their whole range is the interval; of more rounds it is the narrowest that reaches 90 %. CPU is user and system time of the whole process tree of what is measured, \
divided by the work done: on a machine whose cores are not all busy it measures cost better than a rate. Rounds that \
something else disturbed (other processes, the host, a change of the cores' speed) are repeated; if they stay disturbed, \
the report says so.</p></details>\n";

const STYLE: &str = "\
:root{--bg:#fff;--fg:#1c1f23;--soft:#5b6470;--line:#d9dde2;--card:#f6f7f9;--good:#0a6b3d;--bad:#a8201a;--warn:#fff4d6;\
--c0:#4269d0;--c1:#e08b00;--c2:#d0466f;--c3:#3ca18f;--c4:#6b9b37;--c5:#9467bd;--c6:#8c6d4f}\
@media(prefers-color-scheme:dark){:root{--bg:#15181c;--fg:#e6e8eb;--soft:#9aa4b0;--line:#333a42;--card:#1d2126;\
--good:#5fd08f;--bad:#ff8a80;--warn:#3b3213;--c0:#7f9cf5;--c1:#f2b04c;--c2:#f285a4;--c3:#6fd0bf;--c4:#a3cf6d;\
--c5:#c3a2e6;--c6:#c7a98b}}\
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}\
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}\
h1{margin:.2em 0}h2{margin:2.5rem 0 .3rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}\
h3{margin:0 0 .2rem;font-size:1.05rem}.lead,.what,small,.notes{color:var(--soft)}.what{margin:0 0 .4rem}\
nav a{margin-right:.8rem}a{color:var(--c0)}code,pre{font:13px/1.45 ui-monospace,monospace}\
pre{overflow-x:auto;background:var(--card);padding:.8rem;border-radius:6px}\
article{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:1rem 0}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line)}\
th[scope=row],.facts td{text-align:left}.facts th{vertical-align:top}.facts td{overflow-wrap:anywhere}\
.short th,.short td{text-align:left;vertical-align:top;font-weight:normal}.chip{white-space:nowrap;\
border:1px solid currentColor;border-radius:1em;padding:0 .5em;font-size:.85em;display:inline-block;margin:.1em 0}\
.even{color:var(--soft)}.verdicts{margin:.6rem 0 0;padding-left:1.1rem}.good{color:var(--good)}.bad{color:var(--bad)}.remark{color:var(--soft)}\
.ratio{font-variant-numeric:tabular-nums}.warning{background:var(--warn);border-radius:6px;padding:.6rem 1rem}\
details{margin:.6rem 0}summary{cursor:pointer}svg{width:100%;max-width:46rem;height:auto;display:block;margin:.4rem 0}\
svg text{font:13px system-ui,sans-serif}svg .tick{font-size:11px;fill:var(--soft)}svg{fill:var(--fg)}.dot{fill:var(--bg);stroke:var(--fg);stroke-width:1}\
.whisker{stroke:var(--fg);stroke-width:1.5;fill:none}.grid{stroke:var(--line)}.line{fill:none;stroke-width:2}\
.t0{fill:var(--c0)}.t1{fill:var(--c1)}.t2{fill:var(--c2)}.t3{fill:var(--c3)}.t4{fill:var(--c4)}\
.t5{fill:var(--c5)}.t6{fill:var(--c6)}.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}\
.c6{fill:var(--c6)}.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}\
.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}\
@media print{details{display:block}body{font-size:12px}}";
