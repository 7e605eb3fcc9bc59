// Plans of problems met before. Making one takes 10 to 200 microseconds, longer than many kernels
// run, and every execution asks for it twice.
#ifndef TRANSCONV_CORE_PLANS_H_
#define TRANSCONV_CORE_PLANS_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv {

// Makes a plan, or returns why there is none.
template <typename Plan>
using PlanMaker = const char* (*)(const Problem&, Pass, DType, Plan*);

template <typename Plan>
struct Planned {
  Plan plan{};
  const char* reason = nullptr;  // why there is none, or null
};

struct PlanKey {
  Problem problem;
  Pass pass;
  DType dtype;

  bool operator==(const PlanKey& other) const {
    return std::memcmp(this, &other, sizeof(PlanKey)) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<PlanKey>,
              "compared and hashed byte by byte");

struct PlanKeyHash {
  size_t operator()(const PlanKey& key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&key), sizeof(key)});
  }
};

constexpr size_t kMostPlans = 256;  // of one maker; some take 20 KB

// The plan that `kMake` makes of a problem; from any thread.
template <typename Plan, PlanMaker<Plan> kMake>
std::shared_ptr<const Planned<Plan>> PlanOf(Pass pass, const Problem& problem, DType dtype) {
  using Known = std::unordered_map<PlanKey, std::shared_ptr<const Planned<Plan>>, PlanKeyHash>;
  // Never destroyed: threads of the host may outlive static objects.
  static std::mutex& mutex = *new std::mutex;
  static Known& known = *new Known;
  const PlanKey key{problem, pass, dtype};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  auto made = std::make_shared<Planned<Plan>>();
  made->reason = kMake(problem, pass, dtype, &made->plan);
  if (known.size() >= kMostPlans) known.clear();
  known.emplace(key, made);
  return made;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_PLANS_H_
