//! Counters: one statistic over time, as everybody sees it.

/// One statistic over time. The numbers are signed because PyTorch's are: its count of oversize
/// allocations can fall below zero when the limit is changed while some are live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The value now.
    pub current: i64,
    /// The largest value since the last reset of the peaks.
    pub peak: i64,
    /// Sum of all increases since the last reset of the sums.
    pub allocated: i64,
    /// Sum of all decreases since the last reset of the sums.
    pub freed: i64,
}

/// One statistic over all pools, the small ones and the large ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByPool {
    /// Over all pools. Its peak is not the sum of the others' peaks.
    pub all: Counter,
    /// Over the small pools.
    pub small_pool: Counter,
    /// Over the large pools.
    pub large_pool: Counter,
}

impl Counter {
    /// Each of its values, by a name that begins with this one, in the order of names.
    pub fn entries(&self, name: &str) -> [(String, i64); 4] {
        [
            (format!("{name}.allocated"), self.allocated),
            (format!("{name}.current"), self.current),
            (format!("{name}.freed"), self.freed),
            (format!("{name}.peak"), self.peak),
        ]
    }
}

impl ByPool {
    /// Each of its values, by a name that begins with this one, in the order of names.
    pub fn entries(&self, name: &str) -> Vec<(String, i64)> {
        let all = self.all.entries(&format!("{name}.all"));
        let large = self.large_pool.entries(&format!("{name}.large_pool"));
        let small = self.small_pool.entries(&format!("{name}.small_pool"));
        [all, large, small].concat()
    }
}
