// The percentile tables of coding-agent-like: cumulative fraction in 100,000, then tokens, requests or
// milliseconds.
//
// Source: the 692 distinct sessions of the WEKA Claude Code set (Apache-2.0), at the points of
// docs/design/trace-formats.md#weka and between them. A growth below one token counts as one. Tool durations:
// AgentCgroup (facts; docs/design/trace-formats.md#agentcgroup).

#ifndef KVTWIN_TRACES_SYNTH_SYNTHESIZE_CODING_TABLES_H_
#define KVTWIN_TRACES_SYNTH_SYNTHESIZE_CODING_TABLES_H_

#include "traces/synth/synthesize_draws.h"

namespace kvtwin::synth::coding {

constexpr QuantilePoint kRequests[] = {{0, 3},        {1'000, 3},    {5'000, 4},    {10'000, 7},
                                       {25'000, 18},  {50'000, 44},  {75'000, 90},  {90'000, 149},
                                       {95'000, 207}, {99'000, 330}, {99'900, 439}, {100'000, 514}};
// First prompts. Long sessions start small; those that start with much history end soon.
constexpr QuantilePoint kFirstOfShort[] = {
    {0, 8'979},        {5'000, 13'187},   {10'000, 15'413},  {25'000, 19'236},
    {30'000, 20'209},  {35'000, 22'945},  {40'000, 35'760},  {50'000, 68'322},
    {60'000, 103'541}, {65'000, 113'888}, {70'000, 129'465}, {75'000, 148'452},
    {90'000, 322'840}, {95'000, 439'167}, {99'000, 790'759}, {100'000, 851'858}};  // fewer than 60 requests
constexpr QuantilePoint kFirstOfLong[] = {
    {0, 6'343},       {5'000, 12'639},   {10'000, 15'829},  {25'000, 18'388},
    {30'000, 18'835}, {35'000, 19'083},  {40'000, 19'496},  {50'000, 20'289},
    {60'000, 21'204}, {65'000, 21'666},  {70'000, 23'071},  {75'000, 27'798},
    {90'000, 82'954}, {95'000, 102'822}, {99'000, 361'434}, {100'000, 496'710}};
constexpr int64_t kLongSession = 60;
// Growth per step falls with the length of a session: per cent of the tables below, for sessions of at least
// this many requests.
struct GrowthFactor {
  int64_t requests;
  int64_t percent;
};
constexpr GrowthFactor kGrowthFactors[] = {{0, 230}, {30, 160}, {60, 110}, {120, 70}};
// The prompt length at which a session is compacted, if it did not start above it.
constexpr QuantilePoint kCompactAt[] = {{0, 120'000},      {25'000, 145'000}, {50'000, 155'000},
                                        {75'000, 161'000}, {88'000, 166'000}, {92'000, 175'000},
                                        {100'000, 400'000}};
constexpr QuantilePoint kSchemas[] = {{0, 890},         {1'000, 7'655},   {5'000, 8'315},   {10'000, 9'292},
                                      {25'000, 10'667}, {50'000, 12'439}, {75'000, 12'589}, {90'000, 12'974},
                                      {99'000, 15'163}, {100'000, 17'261}};
constexpr QuantilePoint kSystem[] = {{0, 498},        {1'000, 735},    {5'000, 1'573},  {10'000, 2'044},
                                     {25'000, 2'293}, {50'000, 2'774}, {75'000, 3'006}, {90'000, 3'701},
                                     {99'000, 5'964}, {100'000, 7'462}};
// Growth beyond the previous prompt and output.
constexpr QuantilePoint kGrowthTool[] = {
    {0, 1},          {13'000, 1},     {25'000, 44},     {50'000, 298},    {75'000, 1'037},
    {90'000, 3'036}, {95'000, 5'757}, {99'000, 15'717}, {99'900, 59'745}, {100'000, 234'962}};
constexpr QuantilePoint kGrowthUser[] = {
    {0, 1},          {10'000, 3},     {25'000, 53},     {50'000, 207},    {75'000, 674},
    {90'000, 2'080}, {95'000, 4'435}, {99'000, 12'905}, {99'900, 53'915}, {100'000, 94'750}};
constexpr QuantilePoint kOutputTool[] = {
    {0, 35},       {1'000, 70},   {5'000, 92},     {10'000, 108},   {25'000, 139},   {50'000, 215},
    {75'000, 419}, {90'000, 912}, {95'000, 1'566}, {99'000, 3'743}, {99'900, 8'262}, {100'000, 18'195}};
constexpr QuantilePoint kOutputEnd[] = {{0, 4},          {1'000, 16},     {5'000, 57},     {10'000, 86},
                                        {25'000, 124},   {50'000, 232},   {75'000, 471},   {90'000, 829},
                                        {95'000, 1'310}, {99'000, 3'266}, {99'900, 7'787}, {100'000, 10'411}};
// Gaps in milliseconds.
constexpr QuantilePoint kGapTool[] = {{0, 1},
                                      {1'000, 2'000},
                                      {5'000, 3'000},
                                      {10'000, 4'000},
                                      {25'000, 5'000},
                                      {50'000, 9'000},
                                      {75'000, 20'000},
                                      {90'000, 76'000},
                                      {95'000, 164'000},
                                      {99'000, 907'000},
                                      {99'900, 12'962'000},
                                      {100'000, 77'589'000}};
constexpr QuantilePoint kGapUser[] = {{0, 1},
                                      {1'000, 1},
                                      {5'000, 5'000},
                                      {10'000, 14'000},
                                      {25'000, 37'000},
                                      {50'000, 118'000},
                                      {75'000, 378'000},
                                      {90'000, 1'354'000},
                                      {95'000, 3'000'000},
                                      {99'000, 6'556'000},
                                      {99'900, 20'301'000},
                                      {100'000, 72'013'000}};
constexpr QuantilePoint kRetained[] = {
    {0, 0},        {10'000, 0},   {25'000, 44},    {50'000, 114},
    {75'000, 380}, {90'000, 998}, {100'000, 1'000}};  // per mille of the old prompt
constexpr QuantilePoint kCompacted[] = {{0, 9'903},        {10'000, 14'407}, {25'000, 25'900},
                                        {50'000, 33'522},  {75'000, 47'809}, {90'000, 68'516},
                                        {100'000, 109'601}};
constexpr QuantilePoint kSubRequests[] = {{0, 2},       {5'000, 4},   {25'000, 7},  {50'000, 11},
                                          {75'000, 13}, {90'000, 17}, {100'000, 24}};
constexpr QuantilePoint kSubFirst[] = {{0, 8'868},       {25'000, 9'856},  {50'000, 10'335},
                                       {75'000, 11'687}, {90'000, 12'277}, {100'000, 18'259}};
constexpr QuantilePoint kSubGrowth[] = {{0, 25},          {10'000, 256},    {25'000, 650},
                                        {50'000, 2'259},  {75'000, 5'582},  {90'000, 13'015},
                                        {95'000, 21'991}, {99'000, 63'209}, {100'000, 119'842}};
constexpr QuantilePoint kSubOutput[] = {{0, 62},       {10'000, 131}, {25'000, 176},   {50'000, 235},
                                        {75'000, 306}, {90'000, 529}, {95'000, 2'975}, {100'000, 9'829}};
constexpr QuantilePoint kSubGap[] = {{0, 680},        {10'000, 2'260},  {25'000, 3'010},  {50'000, 3'900},
                                     {75'000, 6'440}, {90'000, 29'010}, {95'000, 44'320}, {100'000, 133'040}};

// Tools: their frequency in 100 requests, and their durations in milliseconds. Bash is bimodal, so its table
// is fine.
constexpr QuantilePoint kBashTime[] = {{0, 23},          {5'000, 40},       {10'000, 71},    {25'000, 128},
                                       {50'000, 810},    {75'000, 1'550},   {90'000, 2'730}, {95'000, 5'527},
                                       {99'000, 65'532}, {100'000, 181'463}};
constexpr QuantilePoint kReadTime[] = {{0, 13},       {25'000, 25},    {50'000, 36},    {75'000, 134},
                                       {90'000, 646}, {99'000, 1'823}, {100'000, 2'280}};
constexpr QuantilePoint kGrepTime[] = {{0, 16},       {25'000, 33},    {50'000, 41},    {75'000, 60},
                                       {90'000, 636}, {99'000, 1'684}, {100'000, 2'345}};
constexpr QuantilePoint kEditTime[] = {{0, 14},      {25'000, 30},  {50'000, 40},  {75'000, 60},
                                       {90'000, 78}, {99'000, 128}, {100'000, 399}};
struct Tool {
  const char* name;
  int64_t percent;
  QuantileTable time;
};
constexpr Tool kTools[] = {{"Bash", 44, kBashTime},
                           {"Read", 24, kReadTime},
                           {"Grep", 18, kGrepTime},
                           {"Edit", 14, kEditTime},
                           {"Task", 0, kEditTime}};
constexpr uint32_t kTask = 5;

}  // namespace kvtwin::synth::coding

#endif  // KVTWIN_TRACES_SYNTH_SYNTHESIZE_CODING_TABLES_H_
