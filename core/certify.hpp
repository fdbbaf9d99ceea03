// The search of the engine `trws`, the same on the processor and on a GPU: passes of messages until the
// labels found are certified by the bound, and cut moves where passes alone take long.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace regweave {

// A search keeps the best labels that it has seen: `value()` is their energy, `bound()` a lower bound of all
// energies, `iterate()` passes messages forth and back, `steps()` and `expansions()` try those moves on the
// best labels and return whether they changed them; steps end at the energy that is given. Returns the
// iterations made.
template <typename Search>
int certify(Search& search, int max_iter, double tol) {
    // A sweep of cuts costs what three iterations cost on a processor, fifty on a GPU, and most energies need
    // none: benchmark/notes/decisions.md.
    constexpr int kPatience = 5, kCutEvery = 12;
    double settled = std::numeric_limits<double>::quiet_NaN();  // energy of labels that no step changed
    const auto allowed = [&] { return tol * std::max(std::fabs(search.value()), 1e-12); };
    const auto certified = [&] { return search.value() - search.bound() <= allowed(); };
    const auto steps = [&] {
        if (certified() || search.value() == settled) return;
        const double bound = search.bound();  // energies between bound and value are no smaller than both
        const double wanted = bound + tol * std::min(std::fabs(bound), std::fabs(search.value()));
        if (!search.steps(wanted)) settled = search.value();
    };
    std::vector<double> bounds;
    int iterations = 0;
    while (iterations < max_iter && !certified()) {
        search.iterate();
        if (++iterations % kCutEvery == 0) steps();
        bounds.push_back(search.bound());
        const std::size_t n = bounds.size();
        if (n > kPatience && bounds[n - 1] - bounds[n - 1 - kPatience] < 0.1 * allowed()) break;
    }
    steps();
    steps();
    if (!certified()) search.expansions();
    return iterations;
}

}  // namespace regweave
