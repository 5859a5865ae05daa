//! Questions and claims about the VIP.

use super::*;
use crate::dsr::packet::{Question, parse};

#[test]
fn questions_who_has_the_vip_are_answered_and_others_are_not() {
    let (mut director, now) = director(v4());
    let ask = |target: u8| {
        let mut frame = [&[0xff; 6][..], &CLIENT, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend(CLIENT);
        frame.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, target]);
        frame
    };
    let Verdict::Answer(answer) = director.handle(&ask(10), OWN, now) else { panic!("no answer") };
    assert_eq!(answer[..14], [&CLIENT[..], &OWN, &[8, 6]].concat());
    assert_eq!(answer[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
    assert_eq!(answer[22..], [&OWN[..], &[192, 0, 2, 10], &CLIENT, &[192, 0, 2, 1]].concat());
    assert_eq!(director.handle(&ask(11), OWN, now), Verdict::Pass);
    let announced = owner::announcement(v4().vip, CLIENT);
    assert_eq!(director.handle(&announced, OWN, now), Verdict::Conflict(CLIENT), "another one has it");
    assert_eq!(director.handle(&announced, CLIENT, now), Verdict::Pass, "our own announcement");

    let (mut director, now) = self::director(v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    let question = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &vip.octets(), &[1, 1, 2, 0, 0, 0, 0, 9]].concat();
    let frame = ipv6(&[], packet::ICMPV6, owner::solicited_node(vip), &question);
    let Verdict::Answer(answer) = director.handle(&frame, OWN, now) else { panic!("no answer") };
    assert_eq!(answer.len(), 14 + 40 + 32);
    assert_eq!(parse(&answer).unwrap().content, Content::Claim { address: vip.into(), mac: OWN });
    assert_eq!(answer[14 + 40..14 + 44], [136, 0, 0x8a, 0x56], "with the checksum of RFC 4443");
    let mut forged = frame;
    forged[21] = 254;
    assert_eq!(director.handle(&forged, OWN, now), Verdict::Pass, "it has passed a router");
    let probe = Question { target: vip.into(), asker: Ipv6Addr::UNSPECIFIED.into(), asker_mac: CLIENT };
    assert_eq!(owner::answer(&probe, OWN), owner::announcement(vip.into(), OWN));
    assert_eq!(owner::solicited_node(vip), "ff02::1:ff00:10".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn a_machine_that_asks_in_the_name_of_the_vip_claims_it() {
    let (mut director, now) = director(v4());
    let ask = |sender: u8| {
        let mut frame = [&[0xff; 6][..], &CLIENT, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend(CLIENT);
        frame.extend([192, 0, 2, sender, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
        frame
    };
    assert_eq!(director.handle(&ask(10), OWN, now), Verdict::Conflict(CLIENT));
    assert_eq!(director.handle(&ask(10), CLIENT, now), Verdict::Pass, "our own one");
    assert_eq!(director.handle(&ask(11), OWN, now), Verdict::Pass);
}

#[test]
fn the_question_whether_another_machine_has_the_vip_is_answered_by_one_that_has_it_and_is_no_claim() {
    for service in [v4(), v6()] {
        let (mut director, now) = director(service);
        let question = owner::probe(service.vip, OWN);
        assert_eq!(director.handle(&question, OWN, now), Verdict::Pass, "our own one");
        // What another machine with the VIP does.
        let Verdict::Answer(answer) = director.handle(&question, CLIENT, now) else { panic!("no answer") };
        assert_eq!(director.handle(&answer, OWN, now), Verdict::Conflict(CLIENT));
    }
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    let question = owner::probe(vip.into(), OWN);
    assert_eq!(question[..14], [&[0x33, 0x33, 0xff, 0, 0, 0x10][..], &OWN, &[0x86, 0xdd]].concat());
    assert_eq!(question[14 + 40..14 + 44], [135, 0, 0x4c, 0xcf], "with the checksum of RFC 4443");
    let question = owner::probe(v4().vip, OWN);
    assert_eq!(question[28..32], [0; 4], "RFC 5227: no address of the asker");
}
