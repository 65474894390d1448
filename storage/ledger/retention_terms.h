// What a retention policy means, whichever checkpoints there are. Pure functions.
#ifndef CKPTD_STORAGE_LEDGER_RETENTION_TERMS_H_
#define CKPTD_STORAGE_LEDGER_RETENTION_TERMS_H_

#include <string>

#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

// The policy has no field set: it keeps every checkpoint.
bool KeepsAll(const storage::v1::RetentionPolicy& policy);
// How many of the newest good checkpoints the policy keeps, whatever else it keeps. Not for a policy that
// keeps all.
int LastOf(const storage::v1::RetentionPolicy& policy);
bool IsSamePolicy(const storage::v1::RetentionPolicy& a, const storage::v1::RetentionPolicy& b);

// "last 3, best 2 by lowest loss", for people; and its parts, for policies that have them.
std::string DescribePolicy(const storage::v1::RetentionPolicy& policy);
std::string LastInWords(const storage::v1::RetentionPolicy& policy);
std::string BestInWords(const storage::v1::RetentionPolicy& policy);
std::string StepsInWords(const storage::v1::RetentionPolicy& policy);
std::string AgeInWords(const storage::v1::RetentionPolicy& policy);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_LEDGER_RETENTION_TERMS_H_
