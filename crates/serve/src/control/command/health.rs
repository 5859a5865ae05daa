//! `health`: whether this server should have the address that clients use, for keepalived and the like.

use state::dsr::start_confirmation::Phase as Start;
use text::terminal::line;

use crate::report::{Phase, PoolReport};

/// The reason why clients should come here, or as an error why they should not. A pool without a backend is a reason
/// where it is asked for, or where no pool has one: the other server may have the same backends. A backend of a `dsr`
/// listener must take flows there, too.
pub(super) fn judge(
    phase: Phase,
    start: Start,
    pools: &[PoolReport],
    wanted: &[&str],
) -> Result<String, String> {
    if phase == Phase::Draining {
        return Err("unhealthy: it was told to stop, and takes no new connections".to_owned());
    }
    if start == Start::GivenUp {
        return Err(
            "unhealthy: the services of dsr listeners are given up: the start was not confirmed in time \
                    (--commit-confirm)"
                .to_owned(),
        );
    }
    let dead: Vec<_> = pools.iter().filter(|pool| !pool.serves()).collect();
    let missing: Vec<_> = dead.iter().filter(|pool| wanted.contains(&&*pool.name)).collect();
    let names: Vec<_> =
        missing.iter().filter(|pool| pool.available == 0).map(|pool| line(&pool.name)).collect();
    if !names.is_empty() {
        return Err(format!("unhealthy: no backend of pool {} is available", names.join(", ")));
    }
    if let Some(pool) = missing.first() {
        return Err(format!("unhealthy: {}", takes_nothing(pool)));
    }
    if dead.len() == pools.len() && !pools.is_empty() {
        let refused = dead.iter().find(|pool| pool.available > 0);
        return Err(match refused {
            Some(pool) => format!("unhealthy: {}", takes_nothing(pool)),
            None => "unhealthy: no pool has an available backend".to_owned(),
        });
    }
    let serving = pools.len() - dead.len();
    let mut good =
        format!("healthy: it serves, and {serving} of {} pools have an available backend", pools.len());
    // The other server may have the same backends: an address of several that takes nothing moves no other one.
    let idle = pools.iter().filter(|pool| pool.serves() && pool.taking.iter().any(|taking| !taking.takes()));
    idle.for_each(|pool| good.push_str(&format!("; but {}", takes_nothing(pool))));
    Ok(good)
}

/// Why log-ins fail, of the degraded parts. Clients are served all the same: the address stays here.
pub(super) fn log_ins(degraded: &[(String, String)]) -> String {
    // Not a peer that cannot be told of OTPs, nor Kerberos before the next start: other log-ins work.
    let parts = ["control.listen", "control.kerberos.keytab", "otp", "otp.socket"];
    let of_log_ins =
        degraded.iter().filter(|(subject, _)| subject.starts_with("users ") || parts.contains(&&**subject));
    of_log_ins.map(|(subject, why)| format!("; but log-ins fail: {}: {}", line(subject), line(why))).collect()
}

/// Says at which addresses of a pool, whose backends pass their checks, none of them takes flows.
fn takes_nothing(pool: &PoolReport) -> String {
    let idle = pool.taking.iter().filter(|taking| !taking.takes());
    let addresses: Vec<_> = idle.map(|taking| line(&taking.address)).collect();
    format!(
        "no backend of pool {} takes flows at {}: `penstock ctl dsr status` says why",
        line(&pool.name),
        addresses.join(", ")
    )
}
