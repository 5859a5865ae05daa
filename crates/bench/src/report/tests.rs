use super::contrast::Contrast;
use super::*;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::limit::Limit;
use crate::machine::Machine;
use crate::meter::Cpu;
use crate::pairing::Pairing;
use crate::plan::Missing;
use crate::results::{ContestantResult, FORMAT};
use crate::sample::{Metric, Sample};
use crate::stats::Interval;

/// Results of one group with two contestants: five rounds each, in microseconds of CPU time per request.
pub(crate) fn results(penstock: [f64; 5], rival: [f64; 5]) -> Results {
    let contestant = |name: &str, micros: [f64; 5]| ContestantResult {
        name: name.to_owned(),
        version: Some("1 <b>".to_owned()),
        configuration: format!("{name} <configuration> & more"),
        failed: None,
        samples: micros.map(sample).to_vec(),
        summaries: Default::default(),
    };
    let mut group = GroupResult {
        id: "g".to_owned(),
        title: "work <script>".to_owned(),
        unit: "request".to_owned(),
        headline: Metric::CpuPerUnit,
        columns: vec![Metric::Rate],
        contestants: vec![contestant("penstock", penstock), contestant("nginx", rival)],
        pairs: Vec::new(),
        limits: Vec::new(),
        rounds: vec![Disturbance::default(); 5],
        repeated: Vec::new(),
        planned_rounds: None,
        disturbed: None,
    };
    let limits = [
        Limit::ratio("penstock", Metric::CpuPerUnit, &["nginx", "haproxy"], 0.8).goal(0.75),
        Limit::ratio("penstock", Metric::Rate, &["nginx"], 0.95),
        Limit::absolute("penstock", Metric::CpuPerUnit, 12e-6).goal(11.9e-6),
        Limit::ratio("penstock", Metric::CpuPerUnit, &["pen"], 0.7),
    ];
    group.conclude(&Pairing::Subject("penstock".to_owned()), &limits);
    let scenario = ScenarioResult {
        name: "http".to_owned(),
        question: "how fast?".to_owned(),
        groups: vec![group],
        missing: vec![Missing { program: "haproxy".into(), package: "haproxy".into() }],
        notes: vec!["a note".to_owned()],
        failed: None,
    };
    Results {
        format: FORMAT,
        started: "2026-01-01T00:00:00Z".to_owned(),
        seconds: 10.0,
        command: "penstock bench http".to_owned(),
        rounds: 5,
        trial_seconds: 0.3,
        extent: Extent::Quick,
        cores: Cores { target: vec![0], load: vec![1] },
        machine: Machine { smt: "notsupported".to_owned(), ..Machine::default() },
        scenarios: vec![scenario],
        interrupted: None,
        dropped: None,
    }
}

fn sample(micros: f64) -> Sample {
    let cpu = Some(Cpu { total: micros, ..Cpu::default() });
    Sample { units: 1e6, seconds: 1.0, cpu, ..Sample::default() }
}

pub(crate) const FAST: [f64; 5] = [11.6, 11.7, 11.8, 11.7, 11.9];
pub(crate) const SLOW: [f64; 5] = [15.3, 15.4, 15.5, 15.2, 15.4];

#[test]
fn the_terminal_shows_figures_verdict_and_limit() {
    let text = terminal::group(&results(FAST, SLOW).scenarios[0].groups[0]);
    assert!(text.contains("11.7 us") && text.contains("15.4 us"), "{text}");
    assert!(text.contains("penstock against nginx: 24 % less CPU per request (0.76 x"), "{text}");
    let limit = "limit: CPU per request of penstock / best of nginx, haproxy: <= 0.80 x, goal <= 0.75 x: \
               0.76 x (0.76 to 0.77) against nginx, without haproxy: met\n";
    assert!(text.contains(limit), "{text}");
}

#[test]
fn a_limit_that_is_missed_says_so_in_every_report() {
    let results = results(SLOW, FAST);
    assert!(terminal::group(&results.scenarios[0].groups[0]).contains("MISSED"));
    assert!(markdown::render(&results).contains("MISSED"));
    assert!(html::render(&results).contains("<b class=\"bad\">MISSED</b>"));
}

#[test]
fn limits_are_about_ratios_other_figures_and_absolute_values_and_are_never_left_out() {
    let fast = results(FAST, SLOW);
    let group = &fast.scenarios[0].groups[0];
    let outcomes: Vec<_> = group.limits.iter().map(LimitResult::outcome).collect();
    assert_eq!(outcomes, [Outcome::Met, Outcome::Met, Outcome::GoalMet, Outcome::NotMeasured]);
    let cpu = group.limits[2].measured.as_ref().unwrap();
    assert!((cpu.value - 11.7e-6).abs() < 1e-12 && cpu.rival.is_none(), "{cpu:?}");
    let Interval { low, high, confidence } = cpu.interval;
    assert!((low - 11.6e-6).abs() < 1e-12 && (high - 11.9e-6).abs() < 1e-12 && confidence > 0.9);
    let slow = results(SLOW, FAST);
    let outcomes: Vec<_> = slow.scenarios[0].groups[0].limits.iter().map(LimitResult::outcome).collect();
    assert_eq!(outcomes, [Outcome::Missed, Outcome::Met, Outcome::Missed, Outcome::NotMeasured]);
}

#[test]
fn every_report_ends_with_all_limits_in_a_table() {
    let results = results(FAST, SLOW);
    let text = terminal::limits(&results);
    assert_eq!(text.matches("http/g: ").count(), 4, "{text}");
    assert!(text.contains("11.7 us (11.6 us to 11.9 us); limit <= 12.0 us, goal <= 11.9 us"), "{text}");
    let text = markdown::render(&results);
    let table = &text[text.find("## Limits").unwrap()..text.find("## Configurations").unwrap()];
    assert!(text.find("## http").unwrap() < text.find("## Limits").unwrap());
    let row = "| http/g | requests/s of penstock / nginx | >= 0.95 x | - | 1.00 x (1.00 to 1.00) | met |";
    assert!(
        table.contains(row) && table.contains("| goal met |") && table.contains("| not measured |"),
        "{table}"
    );
    let page = html::render(&results);
    let table = &page[page.find("<h2 id=\"limits\">").unwrap()..page.find("<h2 id=\"machine\">").unwrap()];
    assert_eq!(table.matches("<tr>").count(), 5, "{table}");
    assert!(table.contains("&lt;= 0.80 x") && table.contains("<b class=\"good\">goal met</b>"), "{table}");
}

#[test]
fn an_interrupted_run_says_so_in_every_report() {
    let mut results = results(FAST, SLOW);
    results.interrupted = Some("SIGINT".to_owned());
    results.dropped = Some("http/latency".to_owned());
    results.scenarios[0].groups[0].planned_rounds = Some(9);
    assert!(terminal::group(&results.scenarios[0].groups[0]).contains("INTERRUPTED after 5 of 9 rounds"));
    for text in [markdown::render(&results), html::render(&results)] {
        let place = text.find("Interrupted").unwrap();
        assert!(place < text.find("work ").unwrap() && text.contains("by SIGINT"), "{text}");
        assert!(text.contains("INTERRUPTED after 5 of 9 rounds"), "{text}");
        assert!(text.contains("kept: http/g (5 of 9 rounds); dropped: http/latency, no round"), "{text}");
    }
    let text = Contrast::of(&results, &results).text;
    assert!(text.contains("warning: B was interrupted by SIGINT"), "{text}");
    assert!(text.contains("warning: A has 5 of 9 rounds of http/g"), "{text}");
}

#[test]
fn the_terminal_says_what_is_missing_and_what_to_know_before_the_groups() {
    let mut results = results(FAST, SLOW);
    results.scenarios[0].notes.push("word ".repeat(60));
    let text = terminal::scenario(&results.scenarios[0]);
    assert!(text.contains("== http\nhow fast?\n"), "{text}");
    assert!(text.contains("not installed: haproxy (Debian package haproxy)\n  - a note\n"), "{text}");
    assert_eq!(text.matches("word").count(), 60);
    assert!(text.lines().all(|line| line.len() <= 115), "{text}");
}

#[test]
fn markdown_names_missing_programs_and_holds_configurations() {
    let text = markdown::render(&results(FAST, SLOW));
    assert!(text.contains("not installed: haproxy (Debian package `haproxy`)"), "{text}");
    assert!(text.contains("| penstock | 11.7 us | 1.00 M | +-0.4 % | 5 |"), "{text}");
    assert!(text.contains("penstock <configuration> & more"), "{text}");
}

#[test]
fn the_page_needs_nothing_else_and_shows_foreign_text_as_text() {
    let page = html::render(&results(FAST, SLOW));
    assert!(
        !page.contains("<script")
            && !page.contains("http://")
            && !page.contains("https://")
            && !page.contains("url(")
    );
    assert!(page.contains("work &lt;script&gt;") && page.contains("&lt;configuration&gt; &amp; more"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("class=\"dot\"").count(), 10);
    assert!(page.contains(">0</text>") && page.contains("Spread is half the distance between the quartiles"));
    assert!(!page.contains("notsupported") && page.contains("not supported by this processor"), "{page}");
}

/// Values of an attribute, in the order of the elements of this kind.
fn attributes(svg: &str, element: &str, name: &str) -> Vec<f64> {
    let (begin, key) = (format!("<{element} "), format!(" {name}=\""));
    let value = |text: &str| {
        let (_, rest) = text[..text.find('>')?].split_once(&*key)?;
        rest.split('"').next()?.parse().ok()
    };
    // The blank before the first key stays.
    svg.split(&*begin).skip(1).filter_map(|text| value(&format!(" {text}"))).collect()
}

#[test]
fn the_figure_of_a_bar_is_beside_its_whisker_and_its_dots_and_within_the_chart() {
    for slowest in [15.4, 15.2, 40.0, 4_000.0] {
        let wide = [11.7, 12.0, 13.0, 15.0, slowest];
        for results in [results(FAST, wide), results(wide, SLOW)] {
            let svg = svg::bars(&results.scenarios[0].groups[0]);
            let rows: Vec<&str> = svg.split("<text class=\"name\"").skip(1).collect();
            assert_eq!(rows.len(), 2, "{svg}");
            for row in rows {
                let (_, whisker) = row.split_once("class=\"whisker\" d=\"M").unwrap();
                let (_, end) = whisker.split('"').next().unwrap().split_once('H').unwrap();
                let dots = attributes(row, "circle", "cx");
                assert_eq!(dots.len(), 5, "{row}");
                let right = dots.into_iter().fold(end.parse::<f64>().unwrap(), f64::max);
                let figure = attributes(row, "text", "x")[0];
                // A dot has a radius of 2, with its line 2.5.
                assert!(figure >= right + 4.0, "the figure at {figure}, and a mark at {right}: {row}");
                let words = row.rsplit_once("</text>").unwrap().0;
                let words = &words[words.rfind('>').unwrap() + 1..];
                // 13 pixels high: a digit is 7.5 wide.
                let end = figure + 7.5 * words.chars().count() as f64;
                assert!(end <= 480.0, "{words:?} ends at {end}: {row}");
            }
        }
    }
}

/// Texts of a chart with this in their tags: where they are anchored, and what they say.
fn texts<'a>(svg: &'a str, tag: &str) -> Vec<(f64, &'a str)> {
    let text = |text: &'a str| {
        let (attributes, rest) = text.split_once('>')?;
        let (_, x) = attributes.split_once("x=\"")?;
        let words = rest.split("</text>").next()?;
        attributes.contains(tag).then_some((x.split('"').next()?.parse().ok()?, words))
    };
    svg.split("<text ").skip(1).filter_map(text).collect()
}

#[test]
fn names_and_the_axis_have_room_beside_the_bars_and_the_curves() {
    for name in ["pen", "haproxy-splice", "penstock-xdp-generic"] {
        let mut results = results(FAST, [11.7, 12.0, 13.0, 15.0, 400.0]);
        let group = &mut results.scenarios[0].groups[0];
        group.contestants[1].name = name.to_owned();
        for contestant in &mut group.contestants {
            let mut recorder = crate::latency::Recorder::default();
            (1..1000).for_each(|micros| recorder.record(std::time::Duration::from_micros(micros)));
            contestant.samples[0].latency = Some(recorder.finish());
        }
        let bars = svg::bars(group);
        let first_mark = attributes(&bars, "rect", "x")[0];
        for (end, words) in texts(&bars, "class=\"name\"") {
            assert!(end <= first_mark - 4.0 && end >= 7.0 * words.len() as f64, "{words}: {end}: {bars}");
        }
        let ticks = texts(&bars, "class=\"tick\"");
        assert!(ticks.len() > 1, "{bars}");
        for pair in ticks.windows(2) {
            // 11 pixels high: a digit is 6.4 wide.
            let half = |words: &str| 6.4 * words.len() as f64 / 2.0;
            let (left, right) = (pair[0].0 + half(pair[0].1), pair[1].0 - half(pair[1].1));
            assert!(left < right, "{pair:?}: {bars}");
        }
        let curves = svg::latencies(group);
        let names = texts(&curves, "class=\"t");
        assert_eq!(names.len(), 2, "{curves}");
        for (begin, words) in names {
            assert!(begin + 7.0 * words.len() as f64 <= 480.0, "{words}: {begin}: {curves}");
        }
        let shares = texts(&curves, "text-anchor=\"middle\"");
        assert_eq!(shares.len(), 6, "{curves}");
        for pair in shares.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= 7.0 * "99.9 %".len() as f64, "{pair:?}: {curves}");
        }
    }
}

#[test]
fn the_page_fits_420_pixels() {
    let page = html::render(&results(FAST, SLOW));
    assert!(page.contains("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"));
    // Charts take the width that there is, and their texts can be read at that scale: 13 pixels become 10 at least.
    assert!(page.contains("svg{width:100%;"), "{page}");
    let boxes: Vec<f64> = page
        .split("viewBox=\"0 0 ")
        .skip(1)
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!boxes.is_empty());
    // 16 pixels of the page and 17 of the card on both sides.
    let room = 420.0 - 2.0 * (16.0 + 17.0);
    assert!(boxes.iter().all(|width| 13.0 * room / width >= 9.5), "{boxes:?}");
    // Wide tables scroll by themselves; the table of facts breaks its words anywhere.
    for (at, _) in page.match_indices("<table") {
        let (before, table) = page.split_at(at);
        let scrolls = before.ends_with("<div class=\"wide\">");
        assert!(
            scrolls || table.starts_with("<table class=\"facts\">"),
            "{}",
            &table[..200.min(table.len())]
        );
    }
    assert!(page.contains(".wide{overflow-x:auto}") && page.contains(".facts td{overflow-wrap:anywhere}"));
}

#[test]
fn the_page_says_why_an_interval_has_its_probability() {
    let results = results(FAST, SLOW);
    let interval = results.scenarios[0].groups[0].limits[2].measured.as_ref().unwrap().interval;
    let percent = format!("{:.0} %", interval.confidence * 100.0);
    assert_eq!(percent, "94 %");
    let page = html::render(&results);
    let explained = format!(
        "The probability is no round number because it depends on the number of rounds: five rounds lie on both sides of \
         the true median with {percent}, so their whole range is the interval"
    );
    assert!(page.contains(&explained), "{page}");
}

#[test]
fn a_disturbed_run_says_so_at_the_top_and_beside_every_verdict() {
    let calm = results(FAST, SLOW);
    let mut results = calm.clone();
    results.scenarios[0].groups[0].repeated = vec![results.scenarios[0].groups[0].rounds[0].clone()];
    assert!(
        markdown::render(&results).contains("disturbed: only in 1 round, repeated"),
        "{}",
        markdown::render(&results)
    );
    let group = &mut results.scenarios[0].groups[0];
    group.rounds[2].reasons = vec!["other processes used 20 % of the cores".to_owned()];
    group.mark();
    let json = serde_json::to_value(&results).unwrap();
    let reason = "1 of 5 rounds: other processes used 20 % of the cores";
    assert_eq!(json["scenarios"][0]["groups"][0]["disturbed"], reason);
    let (text, page) = (markdown::render(&results), html::render(&results));
    for text in [&text, &page] {
        let place = text.find("isturbed").unwrap();
        assert!(place < text.len() * 3 / 4 && text.contains(reason), "{text}");
    }
    let terminal = terminal::group(&results.scenarios[0].groups[0]) + &terminal::limits(&results);
    for text in [&terminal, &text] {
        assert!(
            text.contains("penstock against nginx: 24 % less CPU per request (disturbed) (0.76 x"),
            "{text}"
        );
        assert_eq!(text.matches("goal met (disturbed)").count(), 2, "{text}");
    }
    assert_eq!(terminal.matches("met (disturbed)").count(), 6, "{terminal}");
    assert!(page.contains("0.76 &times; <b>better (disturbed)</b></span>"), "{page}");
    assert!(page.contains("<b class=\"even\">goal met (disturbed)</b>") && !page.contains("class=\"good\""));
    let quiet = html::render(&calm) + &terminal::limits(&calm);
    assert!(!quiet.contains("(disturbed)"), "{quiet}");
}

#[test]
fn chips_say_their_verdict_in_words() {
    let page = html::render(&results(FAST, SLOW));
    let short = &page[page.find("<h2 id=\"short\">").unwrap()..];
    assert!(
        short.contains("<span class=\"chip good\">penstock / nginx 0.76 &times; <b>better</b></span>"),
        "{page}"
    );
}

#[test]
fn a_contestant_that_failed_is_in_every_report() {
    let mut results = results(FAST, SLOW);
    let group = &mut results.scenarios[0].groups[0];
    group.contestants[1].failed = Some("the trial does not count: 7 failed".to_owned());
    for text in [terminal::group(group), markdown::render(&results), html::render(&results)] {
        assert!(text.contains("FAILED: nginx: the trial does not count: 7 failed"), "{text}");
    }
}

#[test]
fn texts_of_others_cannot_move_the_cursor_in_the_terminal() {
    let mut results = results(FAST, SLOW);
    let scenario = &mut results.scenarios[0];
    scenario.groups[0].contestants[1].failed = Some("last words: \u{1b}[2J\r".to_owned());
    scenario.notes.push("\u{9b}31m".to_owned());
    let text = terminal::scenario(scenario) + &terminal::group(&scenario.groups[0]);
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn two_runs_are_compared_contestant_by_contestant() {
    let (a, mut b) = (results(FAST, SLOW), results(FAST.map(|value| value * 0.8), SLOW));
    let Contrast { text, compared } = Contrast::of(&a, &b);
    assert_eq!(compared, 2);
    assert!(text.contains("penstock       0.80 x") && text.contains("B is better\n"), "{text}");
    assert!(text.contains("nginx          1.00 x") && text.contains("no difference\n"), "{text}");
    let limit = "http/g: CPU per request of penstock / best of nginx, haproxy, limit <= 0.80 x  (changed)\n    \
               A: met           0.76 x";
    assert!(text.contains(limit) && text.contains("    B: goal met      0.61 x"), "{text}");
    b.machine.kernel = "9.9".to_owned();
    b.machine.programs = vec![("nginx".to_owned(), "2".to_owned())];
    let mut other = a.clone();
    other.machine.programs = vec![("nginx".to_owned(), "1".to_owned())];
    let text = Contrast::of(&other, &b).text;
    assert!(text.starts_with("warning: not the same machine: kernel:  / 9.9\n"), "{text}");
    assert!(text.contains("warning: not the same nginx: 1 / 2\n"), "{text}");
    assert_eq!(text.matches(", on another machine\n").count(), 2, "{text}");
}

#[test]
fn what_only_one_of_two_runs_has_is_named() {
    let (a, mut b) = (results(FAST, SLOW), results(FAST, SLOW));
    b.scenarios[0].groups[0].contestants[1].name = "haproxy".to_owned();
    let mut more = b.scenarios[0].groups[0].clone();
    more.id = "latency".to_owned();
    b.scenarios[0].groups.push(more);
    let Contrast { text, compared } = Contrast::of(&a, &b);
    assert_eq!(compared, 1);
    assert!(text.contains("  only in A: nginx\n  only in B: haproxy\n"), "{text}");
    assert!(text.contains("\nonly in B: http/latency\n"), "{text}");
    b.scenarios[0].name = "tcp".to_owned();
    let Contrast { text, compared } = Contrast::of(&a, &b);
    assert_eq!(compared, 0);
    let expected = "only in A: http/g\nonly in B: tcp/g, tcp/latency\nthe two runs have nothing in common";
    assert!(text.contains(expected), "{text}");
    let mut failed = a.clone();
    let contestants = &mut failed.scenarios[0].groups[0].contestants;
    contestants.iter_mut().for_each(|one| one.samples.clear());
    contestants[0].failed = Some("it broke".to_owned());
    let Contrast { text, compared } = Contrast::of(&a, &failed);
    assert_eq!(compared, 0);
    assert!(text.contains("penstock       not comparable: failed in B: it broke\n"), "{text}");
    assert!(text.contains("nginx          not comparable: no samples in B\n"), "{text}");
    failed.scenarios[0].groups[0].headline = Metric::Rate;
    let text = Contrast::of(&a, &failed).text;
    assert!(text.contains("not comparable: A has CPU per request, B has requests/s\n"), "{text}");
}

#[test]
fn results_survive_their_file_and_other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.json");
    let results = results(FAST, SLOW);
    results.write(&path).unwrap();
    let again = Results::read(&path).unwrap();
    assert_eq!(markdown::render(&again), markdown::render(&results));
    assert_eq!(
        again.scenarios[0].groups[0].contestants[0].samples,
        results.scenarios[0].groups[0].contestants[0].samples
    );
    let whole = std::fs::read_to_string(&path).unwrap();
    for format in [1, FORMAT + 1] {
        let text = whole.replace(&format!("\"format\":{FORMAT}"), &format!("\"format\":{format}"));
        std::fs::write(&path, text).unwrap();
        let error = Results::read(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("r.json: results in format {format}; this program reads")),
            "{error}"
        );
    }
    for text in ["", "{}", "[1]", "{\"format\": 1}", &whole[..whole.len() / 2]] {
        std::fs::write(&path, text).unwrap();
        let error = Results::read(&path).unwrap_err().to_string();
        assert!(error.contains("r.json: not a results file"), "{error}");
    }
}
