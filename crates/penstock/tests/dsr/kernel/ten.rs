//! Ten backends of which one is lost: no flow of the nine others moves, in the process or in the programs.

use logic::dsr::{Backend, Standing, Transports};
use sys::bpf::Tried;
use testing::tools::{self, Root};

use super::frames::{ACK, SYN, TCP, plain};
use super::{Pair, mac, service};

const TEN: [&str; 10] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];
const LOST: usize = 3;

fn pair(is_v6: bool, standing: Standing) -> Pair {
    let mut pair = Pair::new(service(is_v6, Transports::Tcp));
    lose(&mut pair, standing);
    pair
}

fn lose(pair: &mut Pair, standing: Standing) {
    let mut backends = TEN.map(|name| Backend { name, weight: 1, standing: Standing::Open });
    backends[LOST].standing = standing;
    pair.director.set_backends(&backends);
    (0..TEN.len()).for_each(|at| {
        pair.director.set_mac(TEN[at], mac(at));
    });
    pair.draw();
}

/// Which backend has each of five thousand flows: that of the frame that was compared and is still there.
fn owners(pair: &mut Pair, is_v6: bool, flags: u8) -> Vec<usize> {
    let of = |port| {
        assert_eq!(pair.compare(&plain(is_v6, TCP, 7, port, 80, flags)), Tried::Sent);
        usize::from(pair.out[5])
    };
    (10_000..15_000).map(of).collect()
}

#[test]
fn of_ten_backends_one_is_lost_and_no_flow_of_the_others_moves() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    for is_v6 in [false, true] {
        // Flows that the table remembers, then such that only the ring decides.
        let mut remembered = pair(is_v6, Standing::Open);
        let before = owners(&mut remembered, is_v6, SYN);
        let share = |at| before.iter().filter(|owner| **owner == at).count();
        assert!((0..TEN.len()).all(|at| (350..650).contains(&share(at))), "each has a tenth");
        lose(&mut remembered, Standing::Down);
        let after = owners(&mut remembered, is_v6, ACK);
        let fresh = owners(&mut pair(is_v6, Standing::Down), is_v6, SYN);
        for now in [after, fresh] {
            assert!(!now.contains(&LOST));
            let moved = before.iter().zip(&now).filter(|(before, now)| **before != LOST && before != now);
            assert_eq!(moved.count(), 0);
        }
    }
}
