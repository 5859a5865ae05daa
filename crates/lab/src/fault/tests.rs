//! Tests of the choice of faults and hosts, and of the errors of a wrong choice.

use super::*;

fn parse(text: &str) -> Result<Assignment, FaultError> {
    text.parse()
}

fn assigned(texts: &[&str], hosts: usize) -> Result<Vec<usize>, FaultError> {
    let all: Result<Vec<Assignment>, _> = texts.iter().map(|text| parse(text)).collect();
    let faults = assign(&all?, hosts)?;
    Ok(faults.iter().enumerate().filter(|(_, fault)| fault.is_some()).map(|(at, _)| at + 1).collect())
}

#[test]
fn hosts_are_chosen_by_name_number_range_and_share() {
    assert_eq!(assigned(&["deny=lab003"], 5), Ok(vec![3]));
    assert_eq!(assigned(&["deny=lab[002-003],lab005"], 5), Ok(vec![2, 3, 5]));
    assert_eq!(assigned(&["deny=1,4-5"], 5), Ok(vec![1, 4, 5]));
    assert_eq!(assigned(&["deny"], 3), Ok(vec![1, 2, 3]));
    assert_eq!(assigned(&["deny=20%"], 10), Ok(vec![1, 6]));
    // Percentages are of all hosts, and no host gets two faults.
    let both = assigned(&["deny=50%", "silent=50%"], 10);
    assert_eq!(both, Ok((1..=10).collect()));
}

#[test]
fn parameters_are_what_the_fault_takes() {
    let fault = |text: &str| parse(text).unwrap().fault;
    assert_eq!(fault("reset:5").parameter, Parameter::Bytes(5));
    assert_eq!(fault("reset").parameter, Parameter::Bytes(1000));
    assert_eq!(fault("signal:SIGKILL").parameter, Parameter::Signal("KILL".into()));
    assert_eq!(fault("wrong-host:lab004").parameter, Parameter::Host(Some("lab004".to_owned())));
    let first = fault("turn-away@2=1");
    assert!(first.applies(2) && !first.applies(3));
}

#[test]
fn what_cannot_be_had_is_said_with_what_could() {
    let error = |text: &str| parse(text).unwrap_err().to_string();
    let near = |name: &str| {
        let said = error(name);
        let rest = said.strip_prefix(&format!("there is no fault `{name}`")).unwrap();
        rest.strip_suffix("; `penstock lab --list` names them").unwrap().to_owned()
    };
    for (wrong, meant) in [
        ("hangkex", "hang-kex"),
        ("hang-ath", "hang-auth"),
        ("reste", "reset"),
        ("dney", "deny"),
        ("flood-std", "flood-stderr"),
        ("garbage", "banner-garbage or garbage-kex"),
    ] {
        assert_eq!(near(wrong), format!("; did you mean {meant}?"), "{wrong}");
    }
    for nothing in ["", "x", "quite-something-else"] {
        assert_eq!(near(nothing), "", "{nothing}");
    }
    assert_eq!(error("deny:3"), "deny takes no parameter");
    assert_eq!(error("reset:x"), "reset takes a number of bytes, not `x`");
    assert_eq!(error("deny=web1"), "`web1` names no hosts: write lab003, lab[003-010], 3-10, 1,5 or 10%");
    assert_eq!(error("deny=0%"), "`0%` names no hosts: write lab003, lab[003-010], 3-10, 1,5 or 10%");
    let told = |texts: &[&str]| assigned(texts, 5).unwrap_err().to_string();
    assert_eq!(told(&["deny=6"]), "there is no host 6 in a lab of 5");
    assert_eq!(told(&["wrong-host:lab009"]), "there is no host lab009 in a lab of 5");
    assert_eq!(told(&["deny=1", "silent=1-2"]), "host 1 would be `deny` and `silent`; a host has one fault");
}

#[test]
fn every_fault_has_one_line_in_the_table() {
    for kind in Kind::ALL {
        assert_eq!(FAULTS.iter().filter(|entry| entry.kind == *kind).count(), 1, "{kind} in FAULTS");
    }
    assert_eq!(list().lines().count(), FAULTS.len());
}
