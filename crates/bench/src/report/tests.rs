use super::*;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::machine::Machine;
use crate::meter::Cpu;
use crate::results::{ContestantResult, FORMAT};
use crate::sample::{Metric, Sample};
use crate::scenario::{Bar, Missing, Pairing};

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
    };
    let bar = Bar { subject: "penstock".into(), rivals: vec!["nginx".into()], must: 0.8, aim: 0.75 };
    group.conclude(&Pairing::Subject("penstock".to_owned()), &[bar]);
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
    assert!(text.contains("0.76 x, kept; aim 0.75 x"), "{text}");
}

#[test]
fn a_bar_that_is_not_kept_says_so_in_every_report() {
    let results = results(SLOW, FAST);
    assert!(terminal::group(&results.scenarios[0].groups[0]).contains("NOT kept"));
    assert!(markdown::render(&results).contains("NOT kept"));
    assert!(html::render(&results).contains("<b class=\"bad\">not kept</b>"));
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
    for text in
        ["", "{}", "[1]", &std::fs::read_to_string(&path).unwrap().replace("\"format\":1", "\"format\":2")]
    {
        std::fs::write(&path, text).unwrap();
        let error = Results::read(&path).unwrap_err().to_string();
        assert!(error.contains("r.json: not a results file"), "{error}");
    }
}
