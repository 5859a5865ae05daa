use std::cell::RefCell;
use std::rc::Rc;

use nix::sys::signal::Signal;

use super::*;
use crate::context::{Extent, Interrupt};
use crate::meter::Cpu;
use crate::pairing::Pairing;

/// A contestant with a fixed cost that records its trials in a diary.
struct FakeTrial {
    name: &'static str,
    cost: f64,
    fails_at: Option<usize>,
    trials: usize,
    diary: Rc<RefCell<Vec<&'static str>>>,
}

impl Running for FakeTrial {
    fn configuration(&self) -> String {
        "fake".to_owned()
    }

    fn trial(&mut self, _: &Context, _: Window) -> Result<Sample, Error> {
        self.trials += 1;
        self.diary.borrow_mut().push(self.name);
        if self.fails_at == Some(self.trials) {
            return Err(Error::Load { what: self.name.to_owned(), text: "broken".to_owned() });
        }
        let cpu = Some(Cpu { total: self.cost * 1000.0, ..Cpu::default() });
        Ok(Sample { units: 1000.0, seconds: 1.0, cpu, ..Sample::default() })
    }
}

fn run(fails_at: Option<usize>) -> (GroupResult, Vec<&'static str>) {
    let diary = Rc::new(RefCell::new(Vec::new()));
    let mut group = Group::new("g", "a group", "request", Pairing::Subject("a".into()));
    for (name, cost, fails_at) in [("a", 1e-6, None), ("b", 2e-6, fails_at), ("c", 1e-6, None)] {
        let diary = diary.clone();
        group.contestants.push(Contestant::new(name, move |_: &Context| {
            Ok(FakeTrial { name, cost, fails_at, trials: 0, diary: diary.clone() })
        }));
    }
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    let rules = Rules { rounds: 5, duration: Duration::from_millis(1) };
    let result = measure(&context, &group, rules, &mut |_| {}).unwrap();
    let diary = diary.borrow().clone();
    (result, diary)
}

#[test]
fn trials_are_interleaved_after_one_warm_up_each() {
    let (result, diary) = run(None);
    assert!(diary.chunks(3).all(|round| round == ["a", "b", "c"]), "{diary:?}");
    assert_eq!(diary.len(), 3 + 3 * (result.rounds.len() + result.repeated.len()));
    assert!(result.contestants.iter().all(|contestant| contestant.samples.len() == 5));
    let ratios: Vec<_> =
        result.pairs.iter().map(|pair| (pair.other.as_str(), pair.comparison.ratio)).collect();
    assert_eq!(ratios, [("b", 0.5), ("c", 1.0)]);
}

#[test]
fn a_contestant_that_fails_leaves_the_others_running() {
    let (result, _) = run(Some(3));
    let b = result.contestant("b").unwrap();
    assert_eq!(b.failed.as_deref(), Some("b failed: broken"));
    assert!(b.samples.len() <= 1);
    assert_eq!(result.contestant("c").unwrap().samples.len(), 5);
}

#[test]
fn an_interruption_ends_the_group() {
    let interrupt = Interrupt::default();
    interrupt.set(Signal::SIGINT);
    let context = Context::new("/nonexistent".into(), interrupt, Extent::Quick).unwrap();
    let mut group = Group::new("g", "a group", "request", Pairing::Subject("a".into()));
    group.contestants.push(Contestant::new("a", |_: &Context| -> Result<FakeTrial, Error> {
        panic!("started after the interruption")
    }));
    let rules = Rules { rounds: 1, duration: Duration::from_millis(1) };
    assert!(matches!(measure(&context, &group, rules, &mut |_| {}), Err(Error::Interrupted)));
}

#[test]
fn rounds_that_were_complete_survive_an_interruption() {
    let interrupt = Interrupt::default();
    let context = Context::new("/nonexistent".into(), interrupt.clone(), Extent::Quick).unwrap();
    let diary = Rc::new(RefCell::new(Vec::new()));
    let mut group = Group::new("g", "a group", "request", Pairing::Subject("a".into()));
    for name in ["a", "b"] {
        let diary = diary.clone();
        group.contestants.push(Contestant::new(name, move |_: &Context| {
            Ok(FakeTrial { name, cost: 1e-6, fails_at: None, trials: 0, diary: diary.clone() })
        }));
    }
    let rules = Rules { rounds: 50, duration: Duration::from_millis(1) };
    // In the middle of a round, after the warm-up and two complete rounds, which may count or not.
    let stop_at = 2 * 3 + 1;
    let mut observer = |step: Step<'_>| {
        if matches!(step, Step::Figure(..)) && diary.borrow().len() == stop_at {
            interrupt.set(Signal::SIGTERM);
        }
    };
    let result = measure(&context, &group, rules, &mut observer).unwrap();
    assert_eq!(result.planned_rounds, Some(50));
    assert_eq!(diary.borrow().len(), stop_at);
    let rounds = result.rounds.len();
    assert!((1..=2).contains(&rounds) && rounds + result.repeated.len() == 2, "{rounds}");
    assert!(result.contestants.iter().all(|contestant| contestant.samples.len() == rounds));
}

#[test]
fn the_calmest_rounds_are_taken_when_none_is_calm() {
    let round = |other_cpu: f64| {
        let reasons = if other_cpu > 0.06 { vec!["busy".to_owned()] } else { Vec::new() };
        (Disturbance { other_cpu, reasons, ..Disturbance::default() }, other_cpu)
    };
    let mut accepted = vec![round(0.01), round(0.5)];
    let mut rejected = vec![round(0.2), round(0.9)];
    choose_calmest(&mut accepted, &mut rejected);
    let shares = |rounds: &[(Disturbance, f64)]| rounds.iter().map(|(_, share)| *share).collect::<Vec<_>>();
    assert_eq!((shares(&accepted), shares(&rejected)), (vec![0.01, 0.2], vec![0.5, 0.9]));
}

/// Contestant with failures per trial, or, without failures, the shortest trial in milliseconds that finishes a unit.
struct Idler(u64, u128);

impl Running for Idler {
    fn configuration(&self) -> String {
        String::new()
    }

    fn trial(&mut self, _: &Context, window: Window) -> Result<Sample, Error> {
        let first_error = (self.0 > 0).then(|| "refused".to_owned());
        let units = if self.0 == 0 && window.duration.as_millis() >= self.1 { 1.0 } else { 0.0 };
        let seconds = window.duration.as_secs_f64();
        Ok(Sample { units, seconds, errors: self.0, first_error, ..Sample::default() })
    }
}

#[test]
fn a_trial_without_work_is_no_sample_and_fails_its_contestant() {
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    let mut group = Group::new("g", "a group", "request", Pairing::Subject("a".into()));
    group.contestants.push(Contestant::new("a", |_: &Context| Ok(Idler(3, 0))));
    group.contestants.push(Contestant::new("b", |_: &Context| Ok(Idler(0, 500))));
    group.contestants.push(Contestant::new("c", |_: &Context| Ok(Idler(0, 400))));
    let mut told = Vec::new();
    let rules = Rules { rounds: 2, duration: Duration::from_millis(100) };
    let result = measure(&context, &group, rules, &mut |step| {
        if let Step::Failed(name, error) = step {
            told.push(format!("{name}: {error}"));
        }
    })
    .unwrap();
    let failed: Vec<_> = result.contestants.iter().filter_map(|one| one.failed.clone()).collect();
    assert_eq!(failed[0], "the trial does not count: no work was done: 3 failed, the first with: refused");
    assert!(failed[1].contains("no work was finished in 400 ms"), "{failed:?}");
    assert_eq!(result.contestants.iter().map(|one| one.samples.len()).collect::<Vec<_>>(), [0, 0, 2]);
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn a_group_that_needs_more_descriptors_than_there_are_is_not_begun() {
    let mut context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    context.descriptors = 256;
    let mut group = Group::new("g", "a group", "request", Pairing::Subject("a".into()));
    group.descriptors = 660;
    group.contestants.push(Contestant::new("a", |_: &Context| -> Result<Idler, Error> { panic!("started") }));
    let rules = Rules { rounds: 2, duration: Duration::from_millis(1) };
    let result = measure(&context, &group, rules, &mut |_| {}).unwrap();
    let failed = result.contestants[0].failed.as_deref().unwrap();
    assert!(
        failed.starts_with("g needs 660 open descriptors for a process, and the hard limit is 256"),
        "{failed}"
    );
    assert!(result.rounds.is_empty());
}
