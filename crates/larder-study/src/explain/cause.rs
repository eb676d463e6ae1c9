//! The cause: what it is that keeps a request from memory, as the account tells it and replays
//! prove it.

use super::account::Account;
use super::remedy::{Family, Remedy};
use crate::replay::Setup;
use crate::scene::Failure;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is larger than the whole device, or than what the program may have of it.
    TooLarge,
    /// A cap keeps memory of the device from the program, which needs more than that.
    Fraction,
    /// It would fit by now: a block came free while it was tried.
    CameFree,
    /// A graph capture is on, and nothing cached can be given back.
    Capture,
    /// A free block is large enough, and the split limit keeps it for larger requests.
    SplitLimit,
    /// Enough is free where the request looks, but in pieces with live blocks between them.
    Pieces,
    /// What is free is another stream's.
    OtherStreams,
    /// What is free is kept by other pools.
    OtherPools,
    /// What is free lies in segments for requests of another kind.
    OtherKind,
    /// Rounding takes what is missing.
    Rounding,
    /// The program needs more than there is.
    Demand,
}

impl Cause {
    /// What the cause may be, the likeliest first. The last is always there.
    pub(super) fn candidates(setup: &Setup, failure: &Failure, account: &Account) -> Vec<Cause> {
        let report = &failure.report;
        let allowed_bytes = report.cap_bytes.unwrap_or(u64::MAX).min(report.total_bytes);
        if account.tried_bytes > report.total_bytes {
            return vec![Cause::TooLarge];
        }
        let mut causes = Vec::new();
        // Who set a cap knows of it: what is the cause inside the cap comes first.
        let is_beyond = account.tried_bytes > allowed_bytes || report.rejected;
        if is_beyond {
            causes.push(Cause::Fraction);
        }
        if report.pieces.fits_now {
            causes.push(Cause::CameFree);
        }
        if report.captured && account.room_bytes + report.pieces.idle_bytes >= account.need_bytes {
            causes.push(Cause::Capture);
        }
        let has_limit = setup.config.max_split_bytes.is_some();
        if has_limit && report.pieces.own_block_bytes >= account.need_bytes {
            causes.push(Cause::SplitLimit);
        }
        causes.extend(by_place(account, has_limit));
        if account.withheld_bytes > 0 && !causes.contains(&Cause::Fraction) {
            causes.push(Cause::Fraction);
        }
        causes.push(Cause::Demand);
        causes
    }

    /// Whether a replay without the cause gets past the failure. Want is what is left where nothing
    /// else is seen, and has no proof but that.
    pub(super) fn is_proven(self, remedies: &[Remedy]) -> bool {
        let helped = |families: &[Family]| {
            let mut of_them = remedies.iter().filter(|remedy| families.contains(&remedy.family));
            of_them.any(Remedy::gets_past)
        };
        match self {
            Cause::TooLarge => true,
            Cause::Fraction => helped(&[Family::Unheld]),
            Cause::CameFree => helped(&[Family::Policy]),
            Cause::Capture => helped(&[Family::EmptiedBefore]),
            Cause::SplitLimit => helped(&[Family::WithoutSplitLimit]),
            Cause::Pieces | Cause::OtherKind => {
                helped(&[Family::Expandable, Family::FinePages, Family::Tight])
            }
            Cause::OtherStreams => helped(&[Family::OneStream]),
            Cause::OtherPools => helped(&[Family::PoolsLetGo, Family::PoolsLend]),
            Cause::Rounding => helped(&[Family::WithoutRounding]),
            Cause::Demand => false,
        }
    }
}

/// The places in which enough is free, or where most of what would be enough together is, the
/// fullest first.
fn by_place(account: &Account, has_limit: bool) -> Vec<Cause> {
    let within = account.room_bytes.saturating_add(account.cached_bytes());
    let mut places = vec![
        (account.own_bytes, Cause::Pieces),
        (account.other_streams_bytes(), Cause::OtherStreams),
        (account.other_pools_bytes(), Cause::OtherPools),
        (account.other_kind_bytes, Cause::OtherKind),
        (account.rounding_bytes, Cause::Rounding),
    ];
    // The limit keeps free blocks from requests, and hands others out larger than asked for.
    if has_limit {
        let kept_bytes = account.own_bytes.saturating_add(account.rounding_bytes);
        places.insert(0, (kept_bytes, Cause::SplitLimit));
    }
    let enough = within.saturating_add(account.rounding_bytes) >= account.need_bytes;
    // Crumbs are nobody's fault.
    let counts = |bytes: u64| bytes > 0 && bytes >= account.missing_bytes() / 4;
    places.retain(|&(bytes, cause)| {
        let by_rounding = matches!(cause, Cause::Rounding | Cause::SplitLimit);
        counts(bytes) && if by_rounding { enough } else { within >= account.need_bytes }
    });
    places.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    places.into_iter().map(|(_, cause)| cause).collect()
}
