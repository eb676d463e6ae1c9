use larder_sim::soak;
#[test]
fn probe() {
    let base: u64 = std::env::var("BASE").map_or(0, |t| t.parse().unwrap());
    let count: u64 = std::env::var("COUNT").map_or(64, |t| t.parse().unwrap());
    let mut total = soak::Report::default();
    let mut failed = 0;
    for seed in base..base + count {
        match soak::run(seed, 2000) {
            Ok(report) => total += report,
            Err(failure) => { failed += 1; if failed < 6 { println!("{failure}\n") } else { println!("{} {}: {}", failure.seed, failure.plan, failure.prefix_reason) } },
        }
    }
    println!("{failed} failed, {total:?}");
    assert!(failed == 0);
}
