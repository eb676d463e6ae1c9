//! Two models take turns on one GPU that has room for one: the other sleeps, with its weights on
//! the host and its cache dropped. Pointers into a model stay good over its sleep.

use larder::{Allocator, Error, Keep, SimOptions, Which};

fn main() -> Result<(), Error> {
    let allocator =
        Allocator::builder().simulated_with(SimOptions::default().memory_bytes(1 << 30))?;
    let stream = allocator.new_stream()?;
    let mut models = Vec::new();
    for name in ["one", "two"] {
        let [weights, cache] = [format!("{name}'s weights"), format!("{name}'s cache")];
        let load = || allocator.alloc::<f32>(100 << 20, &stream);
        let kept = allocator.region(&weights, Keep::Contents, load)?;
        let make = || allocator.alloc::<f32>(80 << 20, &stream);
        let dropped = allocator.region(&cache, Keep::Nothing, make)?;
        let both = Which::Tags(vec![weights, cache]);
        let slept = allocator.sleep(&both, None)?;
        println!("{name}: {} bytes sleep, {} are kept", slept.asleep_bytes, slept.kept_bytes);
        models.push((both, kept, dropped));
    }
    for turn in 0..4 {
        let (model, weights, _) = &models[turn % 2];
        allocator.wake(model)?;
        println!("turn {turn}: the weights are at {:#x}", weights.addr());
        // The other one does not fit beside it, and says so.
        let (other, ..) = &models[(turn + 1) % 2];
        println!("  {}", allocator.wake(other).unwrap_err());
        allocator.sleep(model, None)?;
    }
    assert_eq!(allocator.sleep_stats()?.generation, 4);
    Ok(())
}
