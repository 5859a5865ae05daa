use super::*;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::machine::Machine;
use crate::meter::Cpu;
use crate::results::{ContestantResult, FORMAT};
use crate::sample::{Metric, Sample};
use crate::scenario::{Bar, Missing, Pairing};
use crate::stats::Interval;

/// Two contestants in one group: five rounds of so many microseconds of CPU time for each request.
fn results(penstock: [f64; 5], rival: [f64; 5]) -> Results {
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
        bars: Vec::new(),
        rounds: vec![Disturbance::default(); 5],
        repeated: Vec::new(),
        interrupted: None,
    };
    let bars = [
        Bar::ratio("penstock", Metric::CpuPerUnit, &["nginx", "haproxy"], 0.8).aim(0.75),
        Bar::ratio("penstock", Metric::Rate, &["nginx"], 0.95),
        Bar::absolute("penstock", Metric::CpuPerUnit, 12e-6).aim(11.9e-6),
        Bar::ratio("penstock", Metric::CpuPerUnit, &["pen"], 0.7),
    ];
    group.conclude(&Pairing::Subject("penstock".to_owned()), &bars);
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
        machine: Machine::default(),
        scenarios: vec![scenario],
        interrupted: None,
    }
}

fn sample(micros: f64) -> Sample {
    let cpu = Some(Cpu { total: micros, ..Cpu::default() });
    Sample { units: 1e6, seconds: 1.0, cpu, ..Sample::default() }
}

const FAST: [f64; 5] = [11.6, 11.7, 11.8, 11.7, 11.9];
const SLOW: [f64; 5] = [15.3, 15.4, 15.5, 15.2, 15.4];

#[test]
fn the_terminal_shows_figures_verdict_and_bar() {
    let text = terminal::group(&results(FAST, SLOW).scenarios[0].groups[0]);
    assert!(text.contains("11.7 us") && text.contains("15.4 us"), "{text}");
    assert!(text.contains("penstock against nginx: better (0.76 x"), "{text}");
    let bar = "bar: CPU per request of penstock / best of nginx, haproxy: must <= 0.80 x, aim <= 0.75 x: \
               0.76 x (0.76 to 0.77) against nginx, without haproxy: kept\n";
    assert!(text.contains(bar), "{text}");
}

#[test]
fn a_bar_that_is_not_kept_says_so_in_every_report() {
    let results = results(SLOW, FAST);
    assert!(terminal::group(&results.scenarios[0].groups[0]).contains("NOT kept"));
    assert!(markdown::render(&results).contains("NOT kept"));
    assert!(html::render(&results).contains("<b class=\"bad\">NOT kept</b>"));
}

#[test]
fn bars_are_about_ratios_other_figures_and_absolute_values_and_are_never_left_out() {
    let fast = results(FAST, SLOW);
    let group = &fast.scenarios[0].groups[0];
    let outcomes: Vec<_> = group.bars.iter().map(BarResult::outcome).collect();
    assert_eq!(outcomes, [Outcome::Kept, Outcome::Kept, Outcome::AimKept, Outcome::NotMeasured]);
    let cpu = group.bars[2].measured.as_ref().unwrap();
    assert!((cpu.value - 11.7e-6).abs() < 1e-12 && cpu.rival.is_none(), "{cpu:?}");
    let Interval { low, high, confidence } = cpu.interval;
    assert!((low - 11.6e-6).abs() < 1e-12 && (high - 11.9e-6).abs() < 1e-12 && confidence > 0.9);
    let slow = results(SLOW, FAST);
    let outcomes: Vec<_> = slow.scenarios[0].groups[0].bars.iter().map(BarResult::outcome).collect();
    assert_eq!(outcomes, [Outcome::NotKept, Outcome::Kept, Outcome::NotKept, Outcome::NotMeasured]);
}

#[test]
fn every_report_ends_with_all_bars_in_a_table() {
    let results = results(FAST, SLOW);
    let text = terminal::bars(&results);
    assert_eq!(text.matches("http/g: ").count(), 4, "{text}");
    assert!(text.contains("11.7 us (11.6 us to 11.9 us); must <= 12.0 us, aim <= 11.9 us"), "{text}");
    let text = markdown::render(&results);
    let table = &text[text.find("## Bars").unwrap()..text.find("## Configurations").unwrap()];
    assert!(text.find("## http").unwrap() < text.find("## Bars").unwrap());
    let row = "| http/g | requests/s of penstock / nginx | >= 0.95 x | - | 1.00 x (1.00 to 1.00) | kept |";
    assert!(
        table.contains(row) && table.contains("| aim kept |") && table.contains("| not measured |"),
        "{table}"
    );
    let page = html::render(&results);
    let table = &page[page.find("<h2 id=\"bars\">").unwrap()..page.find("<h2 id=\"machine\">").unwrap()];
    assert_eq!(table.matches("<tr>").count(), 5, "{table}");
    assert!(table.contains("&lt;= 0.80 x") && table.contains("<b class=\"good\">aim kept</b>"), "{table}");
}

#[test]
fn an_interrupted_run_says_so_in_every_report() {
    let mut results = results(FAST, SLOW);
    results.interrupted = Some("SIGINT".to_owned());
    results.scenarios[0].groups[0].interrupted = Some(9);
    assert!(terminal::group(&results.scenarios[0].groups[0]).contains("INTERRUPTED after 5 of 9 rounds"));
    for text in [markdown::render(&results), html::render(&results)] {
        let place = text.find("Interrupted").unwrap();
        assert!(place < text.find("work ").unwrap() && text.contains("by SIGINT"), "{text}");
        assert!(text.contains("INTERRUPTED after 5 of 9 rounds"), "{text}");
    }
    let text = contrast::render(&results, &results);
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
}

#[test]
fn a_disturbed_run_says_so_at_the_top() {
    let mut results = results(FAST, SLOW);
    results.scenarios[0].groups[0].rounds[2].reasons =
        vec!["other processes used 20 % of the cores".to_owned()];
    for text in [markdown::render(&results), html::render(&results)] {
        let place = text.find("isturbed").unwrap();
        assert!(
            place < text.len() * 3 / 4 && text.contains("1 of 5 rounds: other processes used 20 %"),
            "{text}"
        );
    }
}

#[test]
fn two_runs_are_compared_contestant_by_contestant() {
    let (a, mut b) = (results(FAST, SLOW), results(FAST.map(|value| value * 0.8), SLOW));
    b.machine.kernel = "9.9".to_owned();
    let text = contrast::render(&a, &b);
    assert!(text.contains("warning: not the same machine: kernel:  / 9.9"), "{text}");
    assert!(text.contains("penstock       0.80 x") && text.contains("B is better"), "{text}");
    assert!(text.contains("nginx          1.00 x") && text.contains("no difference"), "{text}");
    let bar = "http/g: CPU per request of penstock / best of nginx, haproxy, must <= 0.80 x  (changed)\n    \
               A: kept          0.76 x";
    assert!(text.contains(bar) && text.contains("    B: aim kept      0.61 x"), "{text}");
    b.scenarios.clear();
    assert!(contrast::render(&a, &b).contains("nothing in common"));
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
